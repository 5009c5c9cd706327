// The name that control-run derives from a command line.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { nameOf } from '../../../run/name.ts';

/** A command line, as a shell splits it at spaces, and its name. */
const LINES: readonly [line: string, name: string][] = [
  ['./train', 'train'], ['/opt/bin/solver --case 1', 'solver'], ['7z a x.7z data', '7z'], ['ffmpeg -i a b', 'ffmpeg'],
  ['make -j 8 train', 'make'], ['docker run --rm image', 'docker'], ['sleep 98765', 'sleep'],
  ['python3 -u train.py --epochs 90', 'train.py'], ['/usr/bin/python3.12 -W ignore ../src/train.py', 'train.py'],
  ['python train.py --data old.py', 'train.py'], ['python.exe -X dev train.py', 'train.py'],
  ['python -u train', 'train'], ['python -m pkg.train --epochs 90', 'pkg.train'],
  ['python3 -', 'python3'], ['python3 -c print(1)', 'python3'], ['python3 -Ic pass', 'python3'],
  ['python3', 'python3'], ['python3 .', 'python3'], ['python3 -i', 'python3'],
  ['nice -n 5 python3 train.py', 'train.py'], ['nice make', 'make'], ['nice', 'nice'], ['nice 7z a', '7z'],
  ['timeout -k 5 10m python3 train.py', 'train.py'], ['timeout --signal KILL 1.5h ./solver 3', 'solver'],
  ['env A=1 -u B python3 train.py', 'train.py'], ['env -i ffmpeg -i in.mp4 out.mp4', 'ffmpeg'],
  ['nohup ./solver in.dat', 'solver'], ['setsid -w sleep 100', 'sleep'], ['stdbuf -oL -e 0 tail -f x', 'tail'],
  ['stdbuf -o L tail -f x', 'tail'], ['ionice -c3 nice rsync a b', 'rsync'], ['ionice -c best-effort make', 'make'],
  ['taskset -c 0-3,8 ./solver', 'solver'], ['taskset 0xff ./solver', 'solver'], ['chrt -f 99 ./solver', 'solver'],
  ['numactl -N 0 -m 0 python -m pkg.train', 'pkg.train'], ['time -f %e -o log make', 'make'],
  ['sudo -u postgres -E psql', 'psql'], ['sudo -- python3 train.py', 'train.py'], ['xvfb-run -a firefox x', 'firefox'],
  ['xvfb-run -s -screen -n 99 node app.mjs', 'app.mjs'], ['systemd-run --user --scope -p CPUQuota=5% make', 'make'],
  ['uv run train.py', 'train.py'], ['uv run --with numpy --no-sync python -u train.py', 'train.py'],
  ['uv run --no-sync pytest tests', 'pytest'], ['uv run -- pytest tests', 'pytest'], ['uv pip install x', 'uv'],
  ['poetry run python train.py', 'train.py'], ['conda run -n ml python -m pkg.train', 'pkg.train'],
  ['torchrun --nproc_per_node 4 train.py', 'train.py'], ['torchrun --standalone -m pkg.train', 'pkg.train'],
  ['torchrun --rdzv_backend c10d --rdzv_endpoint host:29400 train.py --lr 1', 'train.py'],
  ['python -m torch.distributed.run --nproc_per_node 4 train.py', 'train.py'],
  ['accelerate launch --config_file a.yaml --multi_gpu train.py', 'train.py'], ['accelerate launch', 'accelerate'],
  ['mpirun -np 4 --bind-to core ./solver in.dat', 'solver'], ['srun --gres gpu:1 python train.py', 'train.py'],
  ['sh script.sh', 'script.sh'], ['bash -x -o pipefail ./build', 'build'], ['bash', 'bash'], ['sh -s a', 'a'],
  ['node --import ./hook.mjs app.mjs', 'app.mjs'], ['node --max-old-space-size 4096 dist/', 'dist'],
  ['node -e 0 x', 'node'], ['node .', 'node'], ['npx -y tool arg', 'tool'], ['npx tsx watch train.ts', 'train.ts'],
  ['deno run -A x.ts', 'x.ts'], ['deno task dev', 'dev'], ['bun x.ts', 'x.ts'], ['npm run build', 'build'],
  ['npm start', 'npm'], ['java -Xmx4g -cp lib/a.jar:b.jar com.example.Main data.csv', 'com.example.Main'],
  ['java -Dx=y -jar app.jar', 'app.jar'], ['ruby -I lib bin/rails server', 'rails'], ['perl -ne print', 'perl'],
  ['bundle exec sidekiq -C x.yml', 'sidekiq'], ['Rscript --vanilla fit.R', 'fit.R'], ['go run ./cmd/server', 'server'],
  ['php artisan queue:work', 'artisan'], ['julia --project=. -t auto sim.jl', 'sim.jl'],
];

/** Shell code, and its name. */
const CODES: readonly [code: string, name: string][] = [
  ['cd /data && exec python3 train.py > log', 'train.py'], ['cd /data; ./solver 2>&1 | tee log', 'solver'],
  ['set -e\n# a comment\nexport A=1 B\nulimit -c 0\nnice -n 5 python3 -u train.py', 'train.py'],
  ['source "my venv/bin/activate" && A="x y" python -m pkg.train', 'pkg.train'],
  ['conda activate ml && python train.py', 'train.py'], ['module load cuda; srun ./solver', 'solver'],
  ['conda run -n ml python train.py', 'train.py'], ['"$PYTHON" train.py', 'train.py'], ['exec "$@"', 'sh'],
  ['python3 -c "a; b && c"; true', 'python3'], ["bash -c 'cd /data; make train'", 'make'],
  ['exec >log 2>&1; while ! ./step; do sleep 5; done', 'step'],
  ['i=0; while :; do i=$((i+1)); ./work.sh; done', 'work.sh'], ['d=$(date); $(which python3) -u train.py', 'train.py'],
  ['for i in 1 2; do python train.py $i; done # it\'s done', 'train.py'],
  ['(cd /data && make)', 'make'], ['python3 <<EOF\nimport x\nEOF', 'python3'], ['echo "it\'s', 'sh'], ['', 'sh'],
  ['trap "" TERM; echo ready; while :; do sleep 98765 & wait; done', 'sh'], ['/opt/my\\ tool/run\\ it x', 'run it'],
];

describe('nameOf()', () => {
  it('returns the name of the script, not of the interpreter or launcher', () => {
    assert.deepEqual(LINES.map(([line]) => [line, nameOf(line.split(' '))]), LINES);
  });

  it('returns the first command in shell code that is not built in', () => {
    assert.deepEqual(CODES.map(([code]) => [code, nameOf(['sh', '-c', code])]), CODES);
    assert.deepEqual(CODES.map(([code]) => [code, nameOf(['env', 'sh', '-euo', 'pipefail', '-lc', code, 'x'])]), CODES);
  });

  it('is never empty, and takes linear time', () => {
    for (const line of [[], [''], ['/'], ['', '']]) assert.equal(nameOf(line), 'command');
    for (const line of [['.'], ['sh', '-c'], ['env', '--'], ['env', '', '']]) assert.notEqual(nameOf(line), '');
    const start = process.cpuUsage();
    for (const part of ['"', "'", '\\', '$(', 'a=', '-', '0', 'a ', '&>', '\n']) {
      nameOf(['env', part.repeat(100_000)]);
      nameOf(['sh', '-c', part.repeat(100_000)]);
    }
    const { user } = process.cpuUsage(start); // in µs, so that other processes do not count
    assert.ok(user < 5_000_000, `${user} µs`);
  });
});
