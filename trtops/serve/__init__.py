"""Open Inference Protocol over HTTP; metrics, health; the agent."""
