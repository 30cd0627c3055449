"""The facts that commands find out about running servers and about the files of stopped ones."""
