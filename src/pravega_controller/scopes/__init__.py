"""Creates, lists and deletes scopes, with or without their contents."""
