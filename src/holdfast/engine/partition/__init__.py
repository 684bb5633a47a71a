"""The rows of one partition at one version: read, changed and written."""
