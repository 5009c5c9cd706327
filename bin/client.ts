#!/usr/bin/env node
// control-client: sends requests to running systems, and exits with a code for scripts.

import { main } from './client/main.ts';
import { run } from './shared/options.ts';

void run('control-client', main);
