"""The link rate at which each layout takes over, by formula and simulated."""
