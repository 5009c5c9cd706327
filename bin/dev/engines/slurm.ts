import type { Engine } from './engine.ts';

export const slurm: Engine = {
  name: 'slurm',
  packages: '',
  programs: [],
  start() {
    throw new Error('not written yet');
  },
};
