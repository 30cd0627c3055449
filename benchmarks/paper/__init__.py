"""The evaluation of the paper about Pravega, redrawn: figures as data, their works, the page."""
