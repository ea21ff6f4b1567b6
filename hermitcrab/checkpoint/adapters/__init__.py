"""The envelope and the status for training loops of others; each module imports its framework when it is used."""
