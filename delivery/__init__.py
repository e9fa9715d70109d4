"""Carry facts about published materials to recipients that succeed or fail alone."""

__version__ = "0.1.0"
