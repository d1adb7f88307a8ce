"""settings_check.py KVCOBRAD HELP KVCOBRAD.8 KVCOBRAD.CONF.5: the output of --help, the two man pages and the keys of the
configuration file name the same settings with the same defaults, and the file accepts each default."""
import re
import subprocess
import sys
import tempfile

# options that are not settings
ONLY_OPTIONS = {"allow-core", "check-config", "config", "listen-fd", "no-operator-socket", "operator-fd", "print-config", "ready-fd", "help",
                "usage", "user", "version"}


def options_of_help(text):
    """Option to default; None: the sentence has no default."""
    lists = text.split("\n\n kvcobrad", 1)[0].replace("\n" + " " * 20, " ")
    found = {}
    for match in re.finditer(r"^ +(?:-.,)? +--([a-z-]+)(?:[= ]\S*)?(.*(?:\n {10,}.*)*)", lists, re.MULTILINE):
        default = re.search(r"\(default\s+(\S+)\)", match[2])
        found[match[1]] = default[1] if default else None
    return found


def items_of_page(path, pattern):
    """Name to default of each .It of a man page."""
    with open(path, encoding="utf-8") as page:
        text = page.read()
    found = {}
    for item in re.split(r"^\.It ", text, flags=re.MULTILINE)[1:]:
        name = re.search(pattern, item.split("\n", 1)[0])
        if not name:
            continue
        assert name[1] not in found, f"{path}: {name[1]} twice"
        default = re.search(r"^Default: (.*)\.$", item, re.MULTILINE)
        found[name[1]] = default[1].replace("the value of ", "--") if default else None
    return found


def error_of_key(daemon, key, value):
    """The sentence of --check-config about a file with one line; empty: accepted."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write(f"{key} = {value}\n")
        conf.flush()
        done = subprocess.run([daemon, "--check-config", conf.name], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def main(daemon, help_path, page8, page5):
    with open(help_path, encoding="utf-8") as f:
        options = options_of_help(f.read())
    in_8 = items_of_page(page8, r"Fl Fl ([a-z-]+)")
    in_5 = items_of_page(page5, r"^Cm ([a-z-]+)")
    settings = {name: default for name, default in options.items() if name not in ONLY_OPTIONS}

    assert len(settings) > 40, sorted(settings)
    assert ONLY_OPTIONS <= set(options), sorted(ONLY_OPTIONS - set(options))
    assert set(in_8) == set(options) - {"help", "usage", "version"}, set(in_8) ^ set(options)
    assert settings == in_5, {k: (settings.get(k), in_5.get(k)) for k in set(settings) | set(in_5)
                              if settings.get(k, 0) != in_5.get(k, 0)}
    assert all(in_8[name] == default for name, default in settings.items())
    for name in sorted(set(options) - set(settings)):
        assert "there is no setting" in error_of_key(daemon, name, "1"), f"{name} is not a key of the file"
    for name, default in settings.items():
        assert default, f"{name} has no default"
        error = "" if default.startswith("--") else error_of_key(daemon, name, default)
        assert not error, f"{name} = {default}: {error}"
        assert "there is no setting" not in error_of_key(daemon, name, "?"), name


main(*sys.argv[1:])
