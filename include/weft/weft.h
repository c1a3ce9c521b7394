/* All of weft's public interface, except weft/mpi.h. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include "weft/audit.h"
#include "weft/bench.h"
#include "weft/checkpoint.h"
#include "weft/collective.h"
#include "weft/data.h"
#include "weft/generate.h"
#include "weft/graph.h"
#include "weft/infer.h"
#include "weft/info.h"
#include "weft/job.h"
#include "weft/launch.h"
#include "weft/layer.h"
#include "weft/model.h"
#include "weft/ops.h"
#include "weft/plan.h"
#include "weft/predict.h"
#include "weft/program.h"
#include "weft/search.h"
#include "weft/server.h"
#include "weft/session.h"
#include "weft/status.h"
#include "weft/train.h"
#include "weft/transport.h"
#include "weft/types.h"
#include "weft/version.h"
#include "weft/world.h"

#endif
