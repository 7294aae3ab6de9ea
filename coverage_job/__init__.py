"""coverage_job: which tokens will post-training make a model unable to write, and what protects them."""

__version__ = "0.1.0"
