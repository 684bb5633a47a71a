"""The rows of one partition at one version: how they are read, changed and written."""
