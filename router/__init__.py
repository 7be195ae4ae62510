"""The front door: REST API, fleet, decisions."""
