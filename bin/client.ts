#!/usr/bin/env node
// control-client: sends requests to running systems, and exits with a code for scripts. client/ holds its commands.

import { main } from './client/main.ts';
import { EXIT, run } from './shared/cli.ts';

void run('control-client', main, EXIT.NO_ANSWER);
