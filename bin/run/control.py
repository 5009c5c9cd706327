# control.py – MIT – pauses, saves, steers and ends a Python program from outside, between two of its steps
# SPDX-License-Identifier: MIT, copyright (c) 2026 The runtime-control authors
"""Copy this file beside the program (Python 3.8 and newer, no dependencies):

    from control import Control

    def set_rate(learning_rate: float):
        '''Sets the learning rate of the next steps.'''

    control = Control(save, commands={'set': set_rate})  # save() returns the path of the checkpoint
    for epoch in range(90):
        loss = train(epoch)
        control.say(detail={'epoch': epoch, 'loss': loss})
        if control.poll(): break

Start the program with `control-run -- python train.py`. Without control-run, all of this does nothing. The two exchange
lines of JSON on the socket in CONTROL_FD; the manual of runtime-control, bin/README.md, describes them.
"""
import inspect, json, os, select, socket, traceback, typing
from contextlib import suppress

TYPES = {bool: 'boolean', int: 'integer', float: 'number', str: 'string'}


class Control:
    """Takes the commands of control-run.

    save: does save-state, and is called before the end. Returns what it saved, such as a path.
    commands: the program's own commands, as functions by their names. A command has the parameters of its function,
        each with a type (bool, int, float, str or typing.Literal) and perhaps a default. The first line of the
        docstring describes it. It has the value that the function returns; if it raises, only the command fails.

    Raises TypeError if a function has other parameters, also without control-run.
    """

    def __init__(self, save=None, commands=None):
        self.save, self.commands = save, dict(commands or {})
        accepts = {name: declare(name, function) for name, function in self.commands.items()}
        self.request = None  # the latest command, with `by` and `reason` if they were given
        self.ends = False
        self.lines = None  # None without control-run
        with suppress(KeyError, ValueError, OSError):  # not under control-run, or the number is that of another file
            number = int(os.environ.pop('CONTROL_FD'))
            link = socket.socket(fileno=os.dup(number))  # programs that this one starts do not inherit a copy
            link.getpeername()  # fails if it is not connected
            if link.family == socket.AF_UNIX:
                os.close(number)
                os.register_at_fork(after_in_child=self.close)
                link.setblocking(True)  # whatever the default timeout is
                self.socket, self.lines = link, link.makefile('rb', 0)  # the poller does not see what a buffer holds
                self.poller = select.poll()  # select() takes no descriptor above 1023
                self.poller.register(link, select.POLLIN)
        self.say(status='active', accepts=accepts)

    def say(self, **what):
        """Reports something, such as detail={'epoch': 12}. Sends what is not JSON, such as NaN, as a text."""
        if self.lines is None: return
        text = json.dumps(json.loads(json.dumps(what, default=simplify), parse_constant=str))
        with suppress(OSError): self.socket.sendall(f'{text}\n'.encode())  # if it fails, poll() sees why

    def poll(self):
        """Call it between two steps. Returns at once, unless paused. Returns True once the program is to end."""
        paused = False
        while self.lines and not self.ends and (paused or self.poller.poll(0)):
            line = b''
            with suppress(OSError): line = self.lines.readline()
            is_last = not line.endswith(b'\n')  # control-run was killed
            self.request = {'id': 0, 'command': 'shutdown'} if is_last else json.loads(line)
            command = self.request['command']
            try:
                self.say(done=self.request['id'], value=self.execute(command))
                paused, self.ends = command == 'pause' or paused and command != 'resume', command == 'shutdown'
            except Exception as error:
                traceback.print_exc()
                self.say(failed=self.request['id'], error=str(error) or repr(error))
            if is_last: self.close()
        return self.ends

    def execute(self, command):
        if command in self.commands: return self.commands[command](**self.request['arguments'])
        if command == 'save-state' and self.save is None: raise NotImplementedError('the program does not save')
        return self.save() if self.save and command in ('save-state', 'shutdown') else None

    def close(self):
        """Takes no more commands. A forked process calls it: they are not for workers."""
        if self.lines is not None:
            self.lines.close()
            self.socket.close()
            self.lines = None


def declare(name, function):
    """Returns the declaration of a command: its description and its parameters, in the words of JSON Schema."""
    original = getattr(function, 'func', function)  # of a functools.partial
    try: hints, signature = typing.get_type_hints(original), inspect.signature(function)
    except (NameError, TypeError, ValueError) as error: raise TypeError(f'command {name!r}: {error}') from None
    parameters = {}
    for key, parameter in signature.parameters.items():
        hint, default = hints.get(key), parameter.default
        choices = list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else None
        kind, *others = {type(choice) for choice in choices} if choices else {hint}
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        kinds = (float, int) if kind is float else kind
        has_default = default is not parameter.empty
        if kind not in TYPES or others or not is_named or has_default and not isinstance(default, kinds):
            raise TypeError(f'command {name!r}: {parameter} cannot be declared: a parameter has a name, a type (bool, '
                            'int, float, str or typing.Literal), and a default of that type or none')
        words = {'type': TYPES[kind], 'enum': choices, 'default': default if has_default else None}
        parameters[key] = {word: value for word, value in words.items() if value is not None}
    return {'description': (inspect.getdoc(original) or '').split('\n')[0], 'parameters': parameters}


def simplify(value):
    """Returns what stands for a value that is not JSON: the number in a tensor, or else its text."""
    try: return value.item()
    except Exception: return str(value)
