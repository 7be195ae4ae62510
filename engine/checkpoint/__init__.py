"""Finding a model on disk and refusing a bad one before any port opens. Promise: nothing here imports torch."""
