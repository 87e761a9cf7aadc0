"""What this copy of the package is called, and the agent that it takes when none is named.

The one place in the code that differs between a package and what `convert_harness.py` makes of it.
"""

SKILL = "parallel-agent-worktree-skill"
HELPER = "agent_workers.py"
SESSION_PREFIX = "agent-worker-"
# The default mapping is examples/harness-AGENT.json; EXECUTABLE is its program, and AGENT_ARGS
# stands in examples of a call.
AGENT = "kimi"
EXECUTABLE = "kimi"
AGENT_ARGS = "--yolo"
