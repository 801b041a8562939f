"""Growth in files of the workspace."""

from contextlib import ExitStack

from measure import OURS, Curve, RowGroup

from . import search

PEERS = ("rg",)
LIST, SEARCH = "file.list, 100,000 files", "file.search, 100,000 files"
PATTERN = "needle [0-9]+"
FOLDER_SIZE = 100


def measure(stage):
    place = stage.section("files")
    counts = stage.size([1_000, 10_000, 100_000], [1_000, 10_000])
    curves = {LIST: Curve("files-list", "Listing a tree, by files", "files", "ms", is_proportional=True), SEARCH: Curve("files-search", "Searching a tree, by files", "files", "ms", is_proportional=True)}
    for count in counts:
        if not stage.wants(LIST, SEARCH):
            return
        stage.progress(f"{LIST}: writing {count:,}")
        tree = place.folder / f"tree{count}"
        write_tree(tree, count)
        reduced, rounds = stage.reduced(f"{count:,} files"), 5 if count == counts[-1] else 10
        with ExitStack() as stack:
            client = place.client(OURS, stack, tree)
            for row in (*measure_listing(stage, client, tree, count, rounds, reduced), *search.measure_lines(stage, SEARCH, PATTERN, client, tree, rounds, reduced)):
                for player in row.players():
                    curves[row.name].add(player, count, row.p50(player))
                # The earlier sizes are only points of the curves.
                if count == counts[-1]:
                    yield row
    yield from curves.values()


def write_tree(tree, count):
    for number in range(count):
        if number % FOLDER_SIZE == 0:
            folder = tree / f"part{number // FOLDER_SIZE // 100}/folder{number // FOLDER_SIZE}"
            folder.mkdir(parents=True)
        words = f"needle {number}" if number % 1000 == 0 else "nothing to find"
        (folder / f"file{number}.txt").write_text(f"File number {number}\nsome words\n{words}\nand the last line\n")


def measure_listing(stage, client, tree, count, rounds, reduced):
    group = RowGroup(stage, LIST, rounds=rounds, quick=3, reduced=reduced)

    def list_files():
        timing = client.call("file.list", {"glob": ["*.txt"], "type": "file"})
        search.require_total(timing.answer, "total", count)
        return timing.ms

    def list_with_ripgrep():
        taken, names = search.run_ripgrep(stage, tree, "--files", "-g", "*.txt", ".")
        if len(names) != count:
            raise RuntimeError(f"{len(names)} files found, not {count}")
        return taken

    group.add(OURS, list_files)
    group.add("rg", list_with_ripgrep)
    yield from group.measure()
