"""All ranks of a program obey control-run in the same step. Copy this file beside control.py.

    ranks = Ranks(save)  # in every rank, with mpi4py, or once torch.distributed is initialized
    while not ranks.poll(): train()
"""
import datetime, functools, os, pickle, sys, threading, time, traceback
from control import Control, describe, to_text


class Ranks:
    """Takes the commands of control-run in rank 0, and executes them in all. Every rank creates it, and calls poll().

    save, commands: as in Control. They run in every rank, with the same arguments; a client gets the list of values.
    group: of mpi4py, or of torch.distributed with gloo and all ranks. Default: a new one, which waits for a year.
    every: poll() looks once in so many calls: for steps below a millisecond."""
    def __init__(self, save=None, commands=None, group=None, every=1):
        dist = getattr(sys.modules.get('torch'), 'distributed', None)
        is_torch = dist and dist.is_available() and dist.is_initialized() and not hasattr(group, 'Iprobe')
        if not (is_torch or group or 'mpi4py' in sys.modules) and int(os.environ.get('WORLD_SIZE', 1)) > 1:
            raise RuntimeError('call init_process_group() before Ranks()')
        self.link = group if hasattr(group, 'receive') else Tensors(group) if is_torch else Messages(group)
        self.others = range(1, self.link.size)
        self.functions = {'save-state': save, **(commands or {})}
        self.every, self.calls, self.ends, self.control, self.awaited = every, 0, False, None, None
        if self.link.rank == 0:
            shared = {name: self.share(name, function) for name, function in (commands or {}).items()}
            self.control = Control(save and self.share('save-state', save), shared)
            for rank in self.others: self.link.send(self.control.lines is not None, rank)
            threading.Thread(target=self.watch, daemon=True).start()
        self.is_controlled = self.control.lines is not None if self.control else self.link.receive(0)

    def say(self, **what):
        """Reports something, as Control.say() does, in rank 0; does nothing in others."""
        if self.control: self.control.say(**what)

    def poll(self):
        """Every rank calls it between two steps. Executes commands, blocks while paused, returns True at the end."""
        self.calls += 1
        if not self.is_controlled or self.ends or self.calls % self.every: return self.ends
        if self.control is None:
            self.link.send(None, 0)  # it has come
            while not isinstance(word := self.link.receive(0), bool): self.link.send(self.run(*word), 0)
            self.ends = word
            return word
        for rank in self.others:
            self.awaited = time.monotonic(), rank  # since when, and which
            self.link.receive(rank)
        self.awaited = None
        self.ends = self.control.poll()
        for rank in self.others: self.link.send(self.ends, rank)
        return self.ends

    def run(self, name, arguments):  # returns the value, and why it has failed
        try: return describe(self.functions[name](**arguments)), None
        except BaseException as error:  # an exit of one rank would leave the others waiting
            traceback.print_exc()
            return None, to_text(error) or repr(error)

    def share(self, name, function):  # returns a function that runs it in all ranks, for Control
        @functools.wraps(function)
        def run_all(**arguments):
            for rank in self.others: self.link.send((name, arguments), rank)
            results = [self.run(name, arguments), *map(self.link.receive, self.others)]
            errors = [f'rank {rank}: {error}' for rank, (_, error) in enumerate(results) if error]
            if errors: raise RuntimeError('; '.join(errors))
            return [value for value, _ in results]
        if hasattr(function, 'func'): run_all.func = function.func  # of a functools.partial
        return run_all

    def watch(self, told=None):
        while True:
            time.sleep(1)
            awaited = self.awaited
            if awaited in (None, told) or time.monotonic() - awaited[0] < 10: continue
            told = awaited
            print(f'ranks.py: poll() has waited 10 s for rank {awaited[1]}', file=sys.stderr, flush=True)


class Tensors:
    """Messages between ranks by torch.distributed: the size, then the bytes."""
    def __init__(self, group):
        self.torch, self.dist = sys.modules['torch'], sys.modules['torch.distributed']
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()
        self.group = group or self.dist.new_group(backend='gloo', timeout=datetime.timedelta(days=365))

    def send(self, what, rank):
        data = self.torch.tensor(list(pickle.dumps(what)), dtype=self.torch.uint8)
        for tensor in (self.torch.tensor([len(data)]), data): self.dist.send(tensor, rank, self.group)

    def receive(self, rank):
        size = self.torch.tensor([0])
        self.dist.recv(size, rank, self.group)
        data = self.torch.zeros(int(size), dtype=self.torch.uint8)
        self.dist.recv(data, rank, self.group)
        return pickle.loads(bytes(data.tolist()))


class Messages:
    """The same by mpi4py. It sleeps while it waits: a call of Open MPI that blocks takes a whole core."""
    def __init__(self, group):
        from mpi4py import MPI
        self.group = (group or MPI.COMM_WORLD).Dup()
        self.rank, self.size = self.group.Get_rank(), self.group.Get_size()

    def send(self, what, rank): self.group.send(what, rank)

    def receive(self, rank):
        pause = 1e-5
        while not self.group.Iprobe(rank): time.sleep(pause := min(2 * pause, .01))
        return self.group.recv(source=rank)
