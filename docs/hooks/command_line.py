"""What `--help` prints, on the page of the command line."""

import click

import tfresidual_cli

PAGE = "reference/command_line.md"
NAME = "tfresidual"
WIDTH = 90


def on_page_markdown(markdown, page, config, files):
    """Adds the help of all commands to the page."""
    if page.file.src_uri != PAGE:
        return markdown
    parts = [markdown.rstrip()]
    group = tfresidual_cli.cli
    settings = group.context_settings | {"max_content_width": WIDTH}
    with click.Context(group, info_name=NAME, **settings) as parent:
        parts.append(_block(group.get_help(parent)))
        for name, command in sorted(group.commands.items()):
            with click.Context(command, parent, name, **settings) as context:
                parts += [f"## {NAME} {name}", _block(command.get_help(context))]
    return "\n\n".join(parts) + "\n"


def _block(text):
    return f"```text\n{text}\n```"
