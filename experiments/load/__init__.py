"""What experiments share: a neutral load client for any OpenAI-compatible server and the load it sends; command lines,
documents of results, the machine, where a result comes from."""
