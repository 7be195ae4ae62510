"""Layouts beside each other, live on one machine under the same steady and bursty load."""
