"""Imports read by plain patterns: in each language some that are there and some that are not."""

from __future__ import annotations

import pytest

from fanout.coupling import Tree, go_modules

FILES = {
    "python": {
        "src/shop/__init__.py": "", "src/shop/cart.py": "from shop import price\n",
        "src/shop/price.py": "import json\n", "src/shop/user.py": "# from shop import cart\n",
        "src/shop/sub/__init__.py": "",
        "src/shop/sub/tax.py": "from ..price import (\n  total,\n)\n",
        "tools/run.py": "import shop.cart as c, os\n",
    },
    "script": {
        "web/cart.ts": "import { total } from './price';\nexport * from \"./ui\"\n",
        "web/price.ts": "import lodash from 'lodash'\n", "web/ui/index.tsx": "export const x = 1\n",
        "web/old.js": "const p = require('./price.js'); const later = import('../web/cart')\n",
        "web/user.ts": "// no import of price\nconst text = 'from ./cart'\n",
    },
    "go": {
        "go.mod": "module example.com/shop\n", "cart/cart.go": (
            'package cart\nimport (\n\t"fmt"\n\tp "example.com/shop/price"\n)\n'
        ),
        "price/price.go": 'package price\nimport "fmt"\n', "price/price_test.go": "package price\n",
        "user/user.go": 'package user\nimport "example.com/other/price"\n',
    },
    "rust": {
        "src/lib.rs": "pub mod cart;\nmod price;\n",
        "src/cart/mod.rs": "use crate::price::{Total};\n",
        "src/price.rs": "use std::fmt;\n", "src/user.rs": "use serde::price;\n",
    },
    "java": {
        "src/main/java/shop/Cart.java": "package shop;\nimport shop.money.Price;\n",
        "src/main/java/shop/money/Price.java": "import java.util.List;\n",
        "src/main/java/shop/User.java": "import other.money.Price;\n",
        "src/main/java/shop/All.java": "import shop.money.*;\nimport static shop.Cart.total;\n",
    },
    "c": {
        "src/cart.c": '#include "price.h"\n#include <stdio.h>\n', "src/price.h": "",
        "include/shop/tax.h": "", "src/tax.c": '# include "shop/tax.h"\n',
        "src/user.c": "#include <price.h>\n",
    },
}  # fmt: skip
EXPECTED = {
    "python": {
        "src/shop/cart.py": {"src/shop/price.py"}, "src/shop/price.py": set[str](),
        "src/shop/user.py": set[str](), "src/shop/sub/tax.py": {"src/shop/price.py"},
        "tools/run.py": {"src/shop/cart.py"},
    },
    "script": {
        "web/cart.ts": {"web/price.ts", "web/ui/index.tsx"}, "web/price.ts": set[str](),
        "web/old.js": {"web/price.ts", "web/cart.ts"}, "web/user.ts": set[str](),
    },
    "go": {
        "cart/cart.go": {"price/price.go"}, "price/price.go": set[str](),
        "user/user.go": set[str](),
    },
    "rust": {
        "src/lib.rs": {"src/cart/mod.rs", "src/price.rs"}, "src/cart/mod.rs": {"src/price.rs"},
        "src/price.rs": set[str](), "src/user.rs": set[str](),
    },
    "java": {
        "src/main/java/shop/Cart.java": {"src/main/java/shop/money/Price.java"},
        "src/main/java/shop/User.java": set[str](),
        "src/main/java/shop/All.java": {
            "src/main/java/shop/money/Price.java", "src/main/java/shop/Cart.java",
        },
    },
    "c": {
        "src/cart.c": {"src/price.h"}, "src/tax.c": {"include/shop/tax.h"},
        "src/user.c": set[str](),
    },
}  # fmt: skip


@pytest.mark.parametrize("language", FILES)
def test_imports_are_found_and_nothing_else(language: str) -> None:
    files = FILES[language]
    tree = Tree(files, go_modules({p: t for p, t in files.items() if p.endswith("go.mod")}))
    found = {path: tree.imports(path, files[path]) for path in EXPECTED[language]}
    assert found == EXPECTED[language]
