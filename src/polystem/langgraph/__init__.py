"""LangChain and LangGraph: a chat model that knows pools and sessions."""
