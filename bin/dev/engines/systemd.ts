import type { Engine } from './engine.ts';

export const systemd: Engine = {
  name: 'systemd',
  packages: '',
  programs: [],
  start() {
    throw new Error('not written yet');
  },
};
