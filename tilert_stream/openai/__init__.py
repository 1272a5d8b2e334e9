"""The wire's content: OpenAI's requests in, its responses, chunks and errors out."""
