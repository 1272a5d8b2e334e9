"""What is known of requests: metrics, a timeline of each, a log line of each.

In: requests that begin and end, as the service tells its observers. Out: Prometheus' text, JSON
lines, milliseconds beside an answer. While a request runs only its tokens are counted, once a wake.
"""
