# control.py: lets control-run pause, save, steer and end a Python program between two of its steps
# SPDX-License-Identifier: MIT, copyright (c) 2026 The runtime-control authors
"""Copy this file next to your program (Python 3.8 or newer, no dependencies):

    from control import Control
    def set_rate(learning_rate: float):
        '''Sets the learning rate of the next steps.'''
    control = Control(save, commands={'set': set_rate})  # save() writes a checkpoint and returns its path
    for epoch in range(90):
        control.say(detail={'epoch': epoch, 'loss': train(epoch)})
        if control.poll(): break

Start it with `control-run -- python train.py`. Without control-run, the module does nothing. See bin/run/channel.md of
runtime-control for more examples, and for the lines of JSON on the socket in CONTROL_FD."""
import _thread, contextlib, inspect, json, os, re, select, signal, socket, struct, sys, threading, traceback, typing

TYPES = {bool: 'boolean', int: 'integer', float: 'number', str: 'string'}
EXTRAS = {'include_extras': True} if hasattr(typing, 'Annotated') else {}  # Python 3.8 always includes them


class Interrupted(Exception):
    """ask() raises it when a pause, a save or a shutdown waits: call poll(), and ask again if need be."""


class Control:
    """Takes the commands of control-run. save() runs for save-state and before the end; returns what it saved.

    commands: a dict of names and functions: the program's own commands. The parameters are those of the function, each
        with a type (bool, int, float, str or typing.Literal), which typing.Annotated can limit: Annotated[float,
        {'minimum': 0, 'maximum': 1}], Annotated[str, {'maxLength': 80}]. A default is optional. The first line of the
        docstring is the description. Clients receive the return value; if the function raises, only the command fails.
    Only one thread may call poll() and ask().
    Raises TypeError or ValueError if a command cannot be declared, even without control-run."""
    Interrupted = Interrupted

    def __init__(self, save=None, commands=None):
        self.save, self.commands = save, dict(commands or {})
        self.accepts = {name: declare(name, function) for name, function in self.commands.items()}
        self.request = None  # the latest command, with `by` and `reason` if the client gave them
        self.ends, self.lines = False, None  # lines is None without control-run
        self.asked, self.waiting = 0, []  # how many questions; commands that arrived during the latest
        with contextlib.suppress(KeyError, ValueError, OSError):  # not under control-run
            number = int(os.environ.pop('CONTROL_FD'))
            try: link = inherit(number)
            except OSError: link = connect(os.environ['CONTROL_RUN_SOCKET'])  # a launcher has closed it
            os.register_at_fork(after_in_child=self.close)
            self.socket, self.lines = link, link.makefile('rb', 0)  # unbuffered: poll() sees no buffer
            self.poller = select.poll()  # select() fails above descriptor 1023
            self.poller.register(link, select.POLLIN)
        self.say(status='active', accepts=self.accepts)
        if self.lines is not None: self.trace()

    def trace(self):
        """Shows control-run where the main thread is: from another one, or on a signal while that waits for the GIL."""
        main, path, number = threading.main_thread().ident, os.environ.get('CONTROL_RUN_SOCKET', ''), 0
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(True)  # overrides the default timeout
        def is_open(): return attempt(link, lambda link: link.getpeername() == path)  # a program may close all files
        def show(frame):
            names = []
            for _, (one, line) in zip(range(60), traceback.walk_stack(frame)):
                name = f'{one.f_code.co_name} ({one.f_code.co_filename}:{line})'
                names = [] if one.f_code is on_signal.__code__ else names + [name]  # without these functions
            if is_open(): link.sendall(f'{json.dumps({"stack": names[:40]})}\n'.encode())
        def on_signal(_, frame):
            try: show(frame)
            except Exception: pass  # such as a RecursionError
        def serve():
            while is_open() and attempt(link, lambda link: link.recv(4096)):
                attempt(main, lambda main: show(sys._current_frames()[main]))  # it may have ended
        with contextlib.suppress(AttributeError, IndexError, ValueError):  # as on macOS, or not in the main thread
            number = [n for n in range(signal.SIGRTMIN, signal.SIGRTMAX) if signal.getsignal(n) == signal.SIG_DFL][-1]
            signal.signal(number, on_signal)
        with contextlib.suppress(OSError, RuntimeError):  # no socket, or no room for a thread
            link.connect(path)
            link.sendall(f'{json.dumps({"stack": {"pid": os.getpid(), "signal": number}})}\n'.encode())
            _thread.start_new_thread(serve, ())  # no thread that a program would join

    def say(self, **what):
        """Reports something, such as detail={'epoch': 12}. What JSON lacks, such as NaN, becomes a text."""
        if self.lines is None: return
        line = json.dumps({key: describe(value) for key, value in what.items()})
        with contextlib.suppress(OSError): self.socket.sendall(f'{line}\n'.encode())  # poll() notices the failure

    def poll(self):
        """Call it between two steps. Executes commands, blocks while paused, returns True once the program must end."""
        paused = False
        while self.lines and not self.ends and (paused or self.waiting or self.poller.poll(0)):
            request = self.waiting.pop(0) if self.waiting else self.receive()
            if request and 'answer' in request: continue  # to a question that an exception has ended
            is_last = request is None
            self.request = request or {'id': 0, 'command': 'shutdown'}
            command = self.request['command']
            try:
                self.say(done=self.request['id'], value=to_json(self.execute(command)))
                paused, self.ends = command == 'pause' or paused and command != 'resume', command == 'shutdown'
            except Exception as error:
                traceback.print_exc()
                self.say(failed=self.request['id'], error=(to_text(error) or repr(error))[:1000])
            if is_last: self.close()
        return self.ends

    def execute(self, command):
        if command in self.commands:
            return self.commands[command](**to_floats(self.request['arguments'], self.accepts[command]['parameters']))
        if command == 'save-state' and self.save is None: raise NotImplementedError('the program has no save function')
        return self.save() if self.save and command in ('save-state', 'shutdown') else None

    def ask(self, message, parameters=None, timeout=None, key=None):
        """Asks whoever controls the program, and blocks until somebody answers. Returns True or False.

        parameters: what else the answer consists of: {'file': {'type': 'string', 'enum': files}}. Returns it as a dict.
        key: names the decision: once answered, the same question with that key has the answer, also after a restart.
        Raises TimeoutError after `timeout` seconds, Interrupted when a pause, a save or a shutdown waits, ValueError if
            the question is invalid, and RuntimeError without control-run."""
        if self.lines is None: raise RuntimeError('nobody can answer: not under control-run')
        if any(map(is_stop, self.waiting)): raise Interrupted('a command waits for poll()')
        self.asked += 1
        question = dict(id=f'a{self.asked}', message=message, parameters=parameters, timeout=timeout, key=key)
        self.say(ask={name: value for name, value in question.items() if value is not None})
        try: answer = self.receive_answer(question['id'])
        except BaseException:  # such as KeyboardInterrupt
            self.say(withdraw=question['id'])
            raise
        error = answer.get('error', '')
        if error == 'expired': raise TimeoutError(f'expired: {message}')
        if re.match('Interrupted|withdrawn', error):
            self.waiting or self.poller.poll(1000)  # the command may arrive just after, or never if it fails
            raise Interrupted(error)
        if error: raise ValueError(error)
        return answer['arguments']['approved'] if parameters is None else to_floats(answer['arguments'], parameters)

    def receive_answer(self, id):
        while True:
            line = self.receive()
            if line is None: raise Interrupted('control-run was killed')
            if 'answer' not in line: self.waiting.append(line)
            elif line['answer']['id'] == id: return line['answer']
            if is_stop(line): self.say(withdraw=id)  # control-run has sent it before it received the question

    def receive(self):
        line = attempt(self.lines, lambda lines: lines.readline()) or b''
        return json.loads(line) if line.endswith(b'\n') else None  # control-run was killed

    def close(self):
        """Takes no more commands. Forked processes call it: commands are not for workers."""
        if self.lines is not None:
            self.lines.close()
            self.socket.close()
            self.lines = None


def inherit(number):
    """Returns a copy of a connected Unix socket, and closes that. Raises OSError if it is something else."""
    link = socket.socket(fileno=os.dup(number))  # child processes do not inherit the copy
    link.getpeername()  # fails unless connected
    if link.family != socket.AF_UNIX: raise OSError('not a Unix socket')
    if hasattr(socket, 'SO_PEERCRED'):  # the number may be that of another socket by now
        peer = struct.unpack('3i', link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        if peer not in (0, int(os.environ['CONTROL_RUN'].split('-')[0])): raise OSError('not of control-run')
    os.close(number)
    link.setblocking(True)  # overrides the default timeout
    return link


def connect(path):
    """Returns a connection on which this process takes the commands. Raises OSError if another one does."""
    link = socket.socket(socket.AF_UNIX)
    link.setblocking(True)  # overrides the default timeout
    link.connect(path)
    link.sendall(b'{"channel":{"pid":%d}}\n' % os.getpid())
    reply = json.loads(link.makefile('rb', 0).readline() or b'{"error":"control-run has ended"}')
    if 'error' not in reply: return link
    print(f"control.py: takes no commands: {reply['error']}", file=sys.stderr)
    raise OSError(reply['error'])


def declare(name, function):
    """Returns the declaration of a command: its description, and its parameters in JSON Schema terms."""
    original = getattr(function, 'func', function)  # of a functools.partial
    try: hints, signature = typing.get_type_hints(original, **EXTRAS), inspect.signature(function)
    except (NameError, TypeError, ValueError) as error: raise TypeError(f'command {name!r}: {error}') from None
    reserved = '(?!(pause|resume|save-state|shutdown|status|info|stack|answer|withdraw)$)'
    if not re.fullmatch(reserved + '[a-z][a-z0-9-]{0,31}', str(name)):
        raise ValueError(f'command {name!r}: the name must match [a-z][a-z0-9-]{{0,31}} and not be a standard one')
    parameters = {}
    for key, parameter in signature.parameters.items():
        if not re.fullmatch('[A-Za-z][A-Za-z0-9_]{0,31}', key):
            raise ValueError(f'command {name!r}: the name {key!r} must match [A-Za-z][A-Za-z0-9_]{{0,31}}')
        hint, default = hints.get(key), parameter.default
        extras = getattr(hint, '__metadata__', ())  # of typing.Annotated
        if extras: hint = hint.__origin__
        choices = list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else None
        kind, *others = {type(choice) for choice in choices} if choices else {hint}
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        has_default = default is not parameter.empty
        kinds = (float, int) if kind is float else kind
        if kind not in TYPES or others or not is_named or has_default and not isinstance(default, kinds):
            raise TypeError(f'command {name!r}: {parameter} is not supported: a parameter needs a name and a type '
                            '(bool, int, float, str or typing.Literal); a default must have that type')
        words = {'type': TYPES[kind], 'enum': choices, 'default': default if has_default else None}
        try: words.update(check_bounds(extras, None if choices else kind, words['default']) if extras else {})
        except ValueError as error: raise ValueError(f'command {name!r}: {key}: {error}') from None
        parameters[key] = {word: value for word, value in words.items() if value is not None}
    return {'description': (inspect.getdoc(original) or '').split('\n')[0], 'parameters': parameters}


def check_bounds(extras, kind, default):
    """Returns what dicts in typing.Annotated add to a parameter; what other libraries add is ignored (PEP 593).

    Raises ValueError unless it fits the type and the default."""
    limits = {int: ['minimum', 'maximum'], float: ['minimum', 'maximum'], str: ['maxLength']}.get(kind, [])
    bounds = {word: value for extra in extras if isinstance(extra, dict) for word, value in extra.items()}
    if not {*limits, 'description'}.issuperset(bounds):
        raise ValueError(f"a dict in Annotated may have {', '.join(limits + ['description'])}, got {bounds!r}")
    if not isinstance(bounds.get('description', ''), str):
        raise ValueError(f"description must be a text, got {bounds['description']!r}")
    form, numbers = ('an integer', int) if kind is str else ('a finite number', (int, float))
    for limit in limits:
        value = bounds.get(limit, 0)
        if not isinstance(value, numbers) or isinstance(value, bool) or not abs(value) < 1e308:
            raise ValueError(f'{limit} must be {form}, got {value!r}')
    least = 0 if kind is str else bounds.get('minimum', -1e308)
    most = bounds.get('maximum', bounds.get('maxLength', 1e308))
    if least > most: raise ValueError(f'{limits[-1]} must be at least {least}, got {most}')
    if limits and default is not None and not least <= (len(default) if kind is str else default) <= most:
        raise ValueError(f'the default must be within {bounds}, got {default!r}')
    return bounds


def to_floats(arguments, parameters):
    """Makes numbers floats: the JSON of 1.0 may be 1."""
    return {key: float(value) if parameters[key]['type'] == 'number' else value for key, value in arguments.items()}


def is_stop(line): return line.get('command') in ('pause', 'save-state', 'shutdown')
def to_json(value): return json.loads(json.dumps(value, default=simplify), parse_constant=str, parse_int=to_int)
def to_int(digits): return int(digits) if len(digits) < 309 else digits  # JavaScript reads longer ones as Infinity
def simplify(value): return attempt(value, lambda tensor: json.loads(json.dumps(tensor.item())), to_text)
def to_text(value): return attempt(value, str, object.__repr__)
def describe(value): return attempt(value, to_json, describe_items, to_text)  # a report must not end the program
def describe_items(detail): return {to_text(key): attempt(value, to_json, to_text) for key, value in detail.items()}


def attempt(value, *functions):
    for function in functions:
        with contextlib.suppress(Exception): return function(value)
