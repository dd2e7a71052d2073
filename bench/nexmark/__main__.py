"""``python -m bench.nexmark``: see `bench.nexmark.compare`."""

import sys

from bench.nexmark.compare import main

sys.exit(main())
