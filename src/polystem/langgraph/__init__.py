"""LangChain and LangGraph on a polystem server."""

from polystem.langgraph.chat_model import ChatPolystem

__all__ = ["ChatPolystem"]
