"""Clients of databases and object stores, shared by roots and views."""
