"""What a person types and what is printed. Everything below says nothing on a terminal."""
