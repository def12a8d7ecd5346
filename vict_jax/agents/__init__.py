"""Agents by prompting: plain, ReAct and Reflexion, of our own models or of a chat endpoint."""
