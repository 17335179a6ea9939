"""What is kept on disk: checkpoints, runs, resumable jobs, indexes. Knows no level."""
