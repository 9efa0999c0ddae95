"""The run that goes on: started, followed, shown and exported."""
