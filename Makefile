# `make` lists the targets. PYTHON=... chooses the interpreter, ARGS=... goes to pytest or the bench.

PYTHON ?= python3
ARGS ?=
SKILL := parallel-agent-worktree-skill
CODE := scripts tests examples evals tools

export PYTHON
# The tests run on the interpreter that was checked, and nothing else is downloaded for them.
export UV_PYTHON := $(PYTHON)
export UV_PYTHON_DOWNLOADS := never
# Else pyright asks whether there is a newer pyright.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
unexport VIRTUAL_ENV
# It would hide a command that leaves __pycache__ behind.
unexport PYTHONDONTWRITEBYTECODE

UV := sh tools/dev.sh uv
RUN := $(UV) run --frozen
# A folder for one recipe; a shell that a signal ends runs no EXIT trap by itself.
SCRATCH := place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && \
	trap 'exit 130' INT && trap 'exit 143' TERM

.NOTPARALLEL:
.PHONY: help demo bench fire test test-long test-poster test-installs test-harnesses test-harnesses-all \
validate lint style types compile shell skill lock poster clean need need-python need-node

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

demo: need ## run the main job on a throw-away repository (needs no uv)
	@"$(PYTHON)" tools/demo.py

bench: need ## time the commands beside their floors (needs no uv); ARGS="--quick" for a smoke run
	@"$(PYTHON)" tests/bench.py $(ARGS)

test: need ## run the tests; ARGS="-k spawn" chooses some
	@$(RUN) pytest $(ARGS)

test-harnesses: need need-node ## drive real Gemini CLI, Qwen Code and Codex; ARGS="codex" chooses
	@$(RUN) python tests/harnesses.py $(ARGS)

test-harnesses-all: need need-node ## the same, and OpenCode, Claude Code, Kimi (both) and Pi
	@$(RUN) python tests/harnesses.py --all $(ARGS)

test-long: need ## run the long tests: kills at some steps, the two languages of a runner compared
	@$(RUN) pytest -m long $(ARGS)

fire: need ## kill every command before each of its steps (takes some half an hour)
	@for verb in spawn stop resume cleanup discard send; do \
	PYTHONPATH=scripts:tests $(RUN) python tests/under_fire.py $$verb 1 1 || exit 1; done
	@for language in python bash; do \
	PYTHONPATH=scripts:tests $(RUN) python tests/runner_fire.py $$language 1 1 || exit 1; done
	@for verb in merge merge-group squash rebase undo undo-by-revert approve approve-branch \
	collect; do \
	PYTHONPATH=scripts:tests $(RUN) python tests/integration_fire.py $$verb 1 1 || exit 1; done
	@for seed in 1 2 3 4 5 6 7 8 9 10; do \
	PYTHONPATH=scripts:tests $(RUN) python tests/fleet.py $$seed || exit 1; \
	PYTHONPATH=scripts:tests $(RUN) python tests/integration_fleet.py $$seed || exit 1; done

test-poster: need ## open the poster in a real browser
	@$(RUN) pytest -m browser $(ARGS)

test-installs: need need-node ## install the skill as users do and let its self-test run there
	@$(RUN) python tests/installs.py $(ARGS)

validate: need lock lint test test-long test-poster test-installs skill ## everything that must pass

lint: style types compile shell ## ruff, pyright, ty, py_compile, shellcheck

style: need-python ## ruff check and ruff format --check
	@$(RUN) ruff check $(CODE)
	@$(RUN) ruff format --check $(CODE)

types: need-python ## pyright and ty; pyright over a rendered runner too
	@$(RUN) pyright
	@$(RUN) ty check
	@$(SCRATCH) && \
	echo '{"typeCheckingMode": "strict", "pythonVersion": "3.11"}' >"$$place/pyrightconfig.json" && \
	"$(PYTHON)" scripts/render_worker_loop.py --config examples/self-hosted-upgrade.json \
	--language python --output "$$place/run_agent_workers.py" --json >"$$place/answer" && \
	$(RUN) pyright --project "$$place"

compile: need-python ## py_compile every Python file, leaving nothing behind
	@$(SCRATCH) && \
	find $(CODE) -name '*.py' -exec env PYTHONPYCACHEPREFIX="$$place" "$(PYTHON)" -m py_compile {} +

shell: need-python ## shellcheck every shell script; what runners carry as it stands in one
	@$(SCRATCH) && \
	"$(PYTHON)" scripts/render_worker_loop.py --config examples/self-hosted-upgrade.json \
	--language bash --output "$$place/run-agent-workers.sh" --json >"$$place/answer" && \
	find $(CODE) "$$place" -name '*.sh' ! -path '*/runtimes/*' \
	-exec $(RUN) shellcheck .ci/run {} +

# skillscheck takes every file for one that an agent reads: rooms, lock and picture are left out.
skill: need ## three validators of skills, on a copy in a folder named like the skill
	@$(SCRATCH) && export PYTHONPATH=tests/offline && \
	sh tools/dev.sh copy "$$place/$(SKILL)" && $(RUN) agentskills validate "$$place/$(SKILL)" && \
	$(RUN) skillcheck --strict --config tests/skillcheck.toml "$$place/$(SKILL)/SKILL.md" && \
	cd "$$place/$(SKILL)" && rm -rf scripts/fanout uv.lock poster && cd - >/dev/null && \
	{ $(RUN) skillscheck --strict "$$place/$(SKILL)" >"$$place/answer" || { cat "$$place/answer"; exit 1; }; }

poster: need-python ## make poster/screenshot.png of poster/index.html, in a headless Chromium
	@"$(PYTHON)" -B tests/poster.py

lock: need-python ## check that uv.lock fits pyproject.toml
	@$(UV) lock --check

clean: ## remove caches, .venv and .tools
	@rm -rf .tools .venv .hypothesis .pytest_cache .ruff_cache
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

need:
	@sh tools/dev.sh need python3 git tmux bash

need-node:
	@sh tools/dev.sh need node npm

need-python:
	@sh tools/dev.sh need python3
