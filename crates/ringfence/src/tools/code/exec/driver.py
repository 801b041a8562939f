# Runs cells for the server at the other end of the driver socket. A request is a line of sizes, as
# many parts and a NUL; a reply is a list of key-value fields and ends with a NUL. Standard input,
# output and error belong to the code. Modules are imported late, because most cells need none.
import os, signal, sys

WIDEST = 1568
MOST_FIGURES = 4


def drive(line, reader):
    home = sys.path.pop(0) if sys.path and sys.path[0] == "" else None
    os.set_inheritable(line, False)
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.meta_path.insert(0, Plots)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    loop = []
    user = [signal.default_int_handler]
    signal.signal(signal.SIGINT, idle)
    if home is not None:
        sys.path.insert(0, home)
    while True:
        request = receive(reader)
        if request is None:
            return
        failed, ended = None, None
        reply = []
        try:
            signal.signal(signal.SIGINT, user[0])
            try:
                value = run(main, request, loop)
                if value is not None:
                    reply.append(("value", cut(repr(value), request["limit"])))
            finally:
                user[0] = signal.getsignal(signal.SIGINT)
                signal.signal(signal.SIGINT, idle)
        except SystemExit as error:
            ended = error
        except BaseException as error:
            failed = error
        if failed is not None:
            reply.extend(explain(failed, request))
        try:
            reply.extend(Plots.collect(request["figures"]))
        except Exception as error:
            reply.append(("warning", "the figures cannot be shown: %s: %s" % (type(error).__name__, error)))
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        if ended is not None:
            reply.append(("ended", ""))
        send(line, reply)
        if ended is not None:
            raise ended
        if request["once"]:
            # As the interpreter itself exits: it waits for threads and runs exit handlers.
            sys.exit(1 if failed is not None else 0)


def idle(*_):
    pass


def run(main, request, loop):
    name, args = request["name"], request["args"]
    scope = main.__dict__
    if request["file"]:
        with open(request["file"], "rb") as file:
            source = file.read()
        scope["__file__"] = request["file"]
        if request["once"]:
            if sys.path[:1] == [""]:
                sys.path.pop(0)
            sys.path.insert(0, os.path.dirname(request["file"]))
        name = request["file"]
    else:
        source = request["code"]
        Sources.keep(name, source)
    sys.argv[:] = [request["file"] or ""] + args
    asynchronous = 0x2000 if sys.version_info >= (3, 8) else 0
    tree = compile(source, name, "exec", 0x400 | asynchronous, True)
    last = None
    text = source if isinstance(source, str) else ""
    import _ast

    if tree.body and isinstance(tree.body[-1], _ast.Expr) and not text.rstrip().endswith(";"):
        last = _ast.Expression(tree.body.pop().value)
    enter(compile(tree, name, "exec", asynchronous, True), scope, loop)
    if last is not None:
        return enter(compile(last, name, "eval", asynchronous, True), scope, loop)


def enter(code, scope, loop):
    if not code.co_flags & 0x80:
        return eval(code, scope)
    import asyncio

    if not loop:
        loop.append(asyncio.new_event_loop())
        asyncio.set_event_loop(loop[0])
    task = loop[0].create_task(eval(code, scope))
    try:
        return loop[0].run_until_complete(task)
    except KeyboardInterrupt:
        task.cancel()
        raise


def explain(error, request):
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:
        message = "(it cannot be shown)"
    reply = [("name", name), ("message", cut(message, 4096))]
    cell = request["file"] or request["name"]
    at = error.__traceback__
    line, first = None, None
    while at is not None:
        if at.tb_frame.f_code.co_filename == cell:
            line = at.tb_lineno
            first = first or at
        at = at.tb_next
    if isinstance(error, SyntaxError) and error.filename == cell:
        line = error.lineno
    if line:
        reply.append(("line", str(line)))
    try:
        home = sys.path.pop(0) if sys.path else None
        try:
            import linecache, traceback
        finally:
            if home is not None:
                sys.path.insert(0, home)
        Sources.show(linecache)
        lines = traceback.format_exception(type(error), error, first)
        reply.append(("traceback", middle("".join(lines), 8192)))
    except Exception:
        pass
    return reply


class Sources:
    # Sources of the latest cells, so that tracebacks can show their lines.
    kept = {}

    @classmethod
    def keep(cls, name, source):
        cls.kept[name] = source
        while len(cls.kept) > 100:
            cls.kept.pop(next(iter(cls.kept)))

    @classmethod
    def show(cls, linecache):
        for name, source in cls.kept.items():
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)


class Plots:
    # Figures are drawn without a display. `show` saves the open ones, because many scripts close
    # them next.
    BACKEND = "ringfence_figures"
    kept = []
    dropped = 0

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == cls.BACKEND:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, cls)
        if name == "matplotlib.pyplot":
            settings = sys.modules["matplotlib"].rcParams
            if str(dict.__getitem__(settings, "backend")).lower() == "agg":
                dict.__setitem__(settings, "backend", "module://" + cls.BACKEND)
        return None

    @classmethod
    def create_module(cls, spec):
        return None

    @classmethod
    def exec_module(cls, module):
        from matplotlib.backends import backend_agg

        module.__dict__.update({k: v for k, v in vars(backend_agg).items() if not k.startswith("__")})
        module.show = cls.show
        module.FigureCanvas = backend_agg.FigureCanvasAgg

    @classmethod
    def show(cls, *args, **kwargs):
        plots = sys.modules.get("matplotlib.pyplot")
        for number in plots.get_fignums() if plots else ():
            figure = plots.figure(number)
            if len(cls.kept) < MOST_FIGURES:
                cls.kept.append(cls.draw(figure))
            else:
                cls.dropped += 1
            plots.close(figure)

    @classmethod
    def draw(cls, figure):
        from io import BytesIO

        width, height = figure.get_size_inches()
        dpi = min(figure.dpi, WIDEST / max(width, 0.01), WIDEST / max(height, 0.01))
        into = BytesIO()
        figure.savefig(into, format="png", dpi=dpi)
        return into.getvalue()

    @classmethod
    def collect(cls, how):
        cls.show()
        kept, dropped = cls.kept, cls.dropped
        cls.kept, cls.dropped = [], 0
        reply = []
        if how == "none":
            return reply
        for image in kept:
            if how == "file":
                reply.append(("saved", cls.save(image)))
            else:
                reply.append(("figure", image))
        if dropped:
            reply.append(("warning", "%d figures more than %d are left out" % (dropped, MOST_FIGURES)))
        return reply

    @staticmethod
    def save(image):
        number = 1
        while True:
            path = os.path.join(os.getcwd(), "figure-%d.png" % number)
            try:
                with open(path, "xb") as file:
                    file.write(image)
                return path
            except FileExistsError:
                number += 1


def cut(text, limit):
    return text if len(text) <= limit else text[:limit] + "… [%d characters more]" % (len(text) - limit)


def middle(text, limit):
    if len(text) <= limit:
        return text
    return text[: limit // 4] + "\n… [cut] …\n" + text[-limit * 3 // 4 :]


def receive(reader):
    parts = frame(reader)
    if not parts:
        return None
    texts = [part.decode("utf-8", "replace") for part in parts]
    once, name, code, file, figures, limit = texts[:6]
    return dict(
        once=once == "once", name=name, code=code, file=file, figures=figures, limit=int(limit), args=texts[6:]
    )


def frame(reader):
    sizes = reader.readline().split()
    parts = [reader.read(int(size)) for size in sizes]
    reader.read(1)
    return parts


def send(line, pairs):
    marks = {0: "\ufffd", 30: "\ufffd", 31: "\ufffd"}
    fields = []
    for key, value in pairs:
        if isinstance(value, bytes):
            import binascii

            value = binascii.b2a_base64(value, newline=False).decode()
        fields.append(key + "\x1f" + value.translate(marks))
    data = memoryview("\x1e".join(fields).encode("utf-8", "replace") + b"\0")
    try:
        while data:
            data = data[os.write(line, data) :]
    except OSError:
        # The code may have closed this descriptor. The end of the process still shows how it went.
        pass


drive(line, reader)
