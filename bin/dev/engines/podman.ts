import type { Engine } from './engine.ts';

export const podman: Engine = {
  name: 'podman',
  packages: '',
  programs: [],
  start() {
    throw new Error('not written yet');
  },
};
