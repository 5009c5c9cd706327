import type { Engine } from './engine.ts';

export const docker: Engine = {
  name: 'docker',
  packages: '',
  programs: [],
  start() {
    throw new Error('not written yet');
  },
};
