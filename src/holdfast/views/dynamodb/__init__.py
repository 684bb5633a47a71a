"""Views in DynamoDB."""
