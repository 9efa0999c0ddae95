"""The worker's side of a run: one method in one process, from the job to the saved adapter."""
