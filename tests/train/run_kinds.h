/* How a run is divided, and how it saves: for tests that hold for each way. */
#ifndef RUN_KINDS_H
#define RUN_KINDS_H

#include "run_members.h"

typedef struct kind {
    devices devices;
    int ranks; /* 1: one process */
    bool sliced;
} kind;

static const kind kinds[] = {
    {{"one device", 1, {NULL}}, 1, false},
    {{"two devices", 2, {"parallel.devices=2"}}, 1, false},
    {{"two processes", 2, {"parallel.devices=2"}}, 2, false},
    {{"two processes, sliced", 2, {"parallel.devices=2"}}, 2, true},
    {{"four processes, sliced",
      4,
      {"parallel.devices=4", "parallel.optimizer.level=3", "parallel.optimizer.threshold=0"}},
     4,
     true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

#endif
