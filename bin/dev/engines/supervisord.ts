import type { Engine } from './engine.ts';

export const supervisord: Engine = {
  name: 'supervisord',
  packages: '',
  programs: [],
  start() {
    throw new Error('not written yet');
  },
};
