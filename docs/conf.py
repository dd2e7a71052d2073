"""How Sphinx builds the guide: `make docs`."""

from importlib.metadata import version as installed_version

from pystate.state.handle import Elsewhere

project = "pystate"
author = "the pystate developers"
project_copyright = "the pystate developers"
release = version = installed_version("pystate-spark")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]

# Pages
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
# Links to files outside of the guide, which only the repository has.
myst_url_schemes = ["http", "https"]

# The reference: docstrings are numpydoc, and a single backtick in them may be a link.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False

# What it looks like
html_theme = "pydata_sphinx_theme"
html_title = "pystate"
html_static_path = ["_static"]
html_css_files = ["guide.css"]
html_theme_options = {
    "show_prev_next": True,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
}
html_copy_source = False
html_show_sourcelink = False


def leave_out(app, what, name, member, skip, options):
    """Leave out other systems' names, which only raise an error with the name to use."""
    return True if isinstance(member, Elsewhere) else None


def setup(app):
    """Connect the event handler."""
    app.connect("autodoc-skip-member", leave_out)
