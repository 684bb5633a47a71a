"""The bytes on disk: names, segments, manifests and their second copies."""
