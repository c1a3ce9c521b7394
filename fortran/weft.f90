! weft for Fortran 2018: all of the C interface that a program needs which computes (tests/mpi/fortran_exceptions
! lists what is left out, and why).
!
!     mpicc   -c $(pkg-config --cflags weft) weft_fortran*.c
!     mpifort -c weft.f90
!     mpifort program.f90 weft.o weft_fortran*.o $(pkg-config --libs weft)
!
! Names, arguments and meanings are those of the C headers, which say all that is not said here; each weft_NAME.inc has
! what weft/NAME.h has. Functions that can fail return a status: 0 or more is success, weft_error_message() says what was
! wrong. Beyond that:
!
! - Arrays have any type and shape. They tell how much they hold, so counts and types of elements are optional. They are
!   read and written in place; those that are not contiguous are copied by the compiler, or, where a call returns before
!   it is done, refused.
! - Shapes are written as in C, the dimension that varies fastest last: a tensor [batch, features] is an array
!   (features, batch) of Fortran. Ranks, axes and indices count from 0.
! - Texts lose trailing blanks. What is optional in C is optional here, behind all that is not.
! - Communicators are integers, as of `use mpi`; of an mpi_f08 communicator take comm%MPI_VAL.
!
! Handles are structures of one pointer, which every C compiler of today hands over as it does a pointer.
module weft_c ! what goes straight to C
    use, intrinsic :: iso_c_binding, only: c_ptr, c_null_ptr, c_funptr, c_null_funptr, c_bool, c_char, c_double, c_int, &
        c_int32_t, c_int64_t, c_size_t, c_associated, c_f_pointer
    implicit none
    private :: c_ptr, c_null_ptr, c_funptr, c_null_funptr, c_bool, c_char, c_double, c_int, c_int32_t, c_int64_t, c_size_t, &
        c_associated, c_f_pointer

    integer, parameter :: WEFT_OK = 0, WEFT_PENDING = 1, WEFT_E_ARG = -1, WEFT_E_SHAPE = -2, WEFT_E_LAYOUT = -3, &
        WEFT_E_NO_IMPL = -4, WEFT_E_NOT_FOUND = -5, WEFT_E_NOMEM = -20, WEFT_E_IO = -21, WEFT_E_CORRUPT = -22, &
        WEFT_E_NUMERIC = -23, WEFT_E_STOPPED = -24, WEFT_E_PEER = -40, WEFT_E_TIMEOUT = -41, WEFT_E_MISMATCH = -42, &
        WEFT_E_LOST = -43, WEFT_E_RECOVERED = -44, WEFT_E_DEVICE = -60, WEFT_E_BUG = -99
    integer, parameter :: WEFT_VERSION_MAJOR = 0, WEFT_VERSION_MINOR = 1, WEFT_VERSION_PATCH = 0 ! of this module; the library: weft_version_number
    integer, parameter :: WEFT_RANK_OWN = -1, WEFT_RANK_NONE = -2 ! of weft_error_rank
    integer, parameter :: WEFT_MAX_RANK = 8, WEFT_MAX_END_TOKENS = 16, WEFT_LORA_TARGETS = 128
    enum, bind(C)
        enumerator :: WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_F64, WEFT_I32, WEFT_I64, WEFT_U16, WEFT_U8, WEFT_BOOL
    end enum
    enum, bind(C)
        enumerator :: WEFT_REDUCE_SUM, WEFT_REDUCE_MAX, WEFT_REDUCE_MIN, WEFT_REDUCE_PROD
    end enum
    enum, bind(C)
        enumerator :: WEFT_INIT_ZEROS, WEFT_INIT_CONSTANT, WEFT_INIT_NORMAL, WEFT_INIT_UNIFORM
    end enum
    enum, bind(C)
        enumerator :: WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE
    end enum
    enum, bind(C)
        enumerator :: WEFT_SGD, WEFT_MOMENTUM, WEFT_NESTEROV, WEFT_ADAM, WEFT_ADAMW, WEFT_LAMB, WEFT_LION, &
            WEFT_ADAFACTOR, WEFT_ADAGRAD, WEFT_NO_OPTIMIZER
    end enum
    enum, bind(C)
        enumerator :: WEFT_ROWS_NONE, WEFT_ROWS_AUTO
    end enum
    enum, bind(C)
        enumerator :: WEFT_BF16_AUTO, WEFT_BF16_AS_F32, WEFT_BF16_NATIVE
    end enum
    enum, bind(C)
        enumerator :: WEFT_ROLE_PARAM, WEFT_ROLE_STATE, WEFT_ROLE_OPTIMIZER, WEFT_ROLE_INPUT, WEFT_ROLE_OUTPUT
    end enum
    enum, bind(C)
        enumerator :: WEFT_PARALLEL_DATA, WEFT_PARALLEL_SEMI, WEFT_PARALLEL_MANUAL
    end enum
    enum, bind(C)
        enumerator :: WEFT_PIPELINE_GPIPE, WEFT_PIPELINE_1F1B, WEFT_PIPELINE_INTERLEAVED, WEFT_PIPELINE_ZERO_BUBBLE
    end enum
    enum, bind(C)
        enumerator :: WEFT_RECOMPUTE_NONE, WEFT_RECOMPUTE_SELECTIVE, WEFT_RECOMPUTE_FULL
    end enum
    enum, bind(C)
        enumerator :: WEFT_FUSION_NONE, WEFT_FUSION_AUTO, WEFT_FUSION_SIZE, WEFT_FUSION_INDEX
    end enum
    enum, bind(C)
        enumerator :: WEFT_DATASET_DATA_PARALLEL, WEFT_DATASET_FULL_BATCH
    end enum
    enum, bind(C)
        enumerator :: WEFT_OFFLOAD_OPTIMIZER, WEFT_OFFLOAD_PARAMETERS, WEFT_OFFLOAD_SAVED, &
            WEFT_OFFLOAD_GRADIENTS, WEFT_OFFLOAD_COPIES
    end enum
    enum, bind(C)
        enumerator :: WEFT_TIER_DEVICE, WEFT_TIER_HOST, WEFT_TIER_DISK
    end enum
    enum, bind(C)
        enumerator :: WEFT_SEARCH_PROPAGATION, WEFT_SEARCH_DYNAMIC, WEFT_SEARCH_RECURSIVE, WEFT_SEARCH_JOINT
    end enum
    enum, bind(C)
        enumerator :: WEFT_COST_MINDSPORE, WEFT_COST_MACHINE
    end enum
    enum, bind(C)
        enumerator :: WEFT_DATA_TRAIN, WEFT_DATA_VALIDATION
    end enum
    enum, bind(C)
        enumerator :: WEFT_FAMILY_GPT2, WEFT_FAMILY_LLAMA, WEFT_FAMILY_BERT, WEFT_FAMILY_GPT2_MOE, WEFT_FAMILY_MIXTRAL, &
            WEFT_FAMILY_MISTRAL, WEFT_FAMILY_QWEN2, WEFT_FAMILY_QWEN3, WEFT_FAMILY_OLMO2, WEFT_FAMILY_VIT, WEFT_FAMILY_MLP, &
            WEFT_FAMILY_LENET, WEFT_FAMILY_RESNET18, WEFT_FAMILY_RESNET50
    end enum
    enum, bind(C)
        enumerator :: WEFT_USE_TRAIN, WEFT_USE_EVAL, WEFT_USE_LOGITS, WEFT_USE_DECODE
    end enum

    ! --- handles ---

    type, bind(C) :: weft_world
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, bind(C) :: weft_group
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, bind(C) :: weft_request
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, bind(C) :: weft_graph
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, bind(C) :: weft_plan
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, bind(C) :: weft_session
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, bind(C) :: weft_data
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, bind(C) :: weft_value
        integer(c_int32_t) :: id = -1
    end type
    type(weft_value), parameter :: WEFT_NO_VALUE = weft_value(-1)

    ! --- structures of the C headers, field by field ---

    type, bind(C) :: weft_desc
        integer(c_int) :: dtype = WEFT_F32, rank = 0
        integer(c_int64_t) :: shape(WEFT_MAX_RANK) = 0
    end type
    type, bind(C) :: weft_init
        integer(c_int) :: kind = WEFT_INIT_ZEROS
        real(c_double) :: scale = 0
    end type
    type, bind(C) :: weft_dense_options
        integer(c_size_t) :: struct_bytes = 32
        real(c_double) :: deviation = 0
        logical(c_bool) :: transposed = .false., no_bias = .false.
        type(c_funptr) :: activation = c_null_funptr
    end type
    type, bind(C) :: weft_attention_options
        integer(c_size_t) :: struct_bytes = 48
        logical(c_bool) :: causal = .false.
        integer(c_int64_t) :: window = 0
        real(c_double) :: scale = 0, dropout = 0
        type(weft_value) :: mask = WEFT_NO_VALUE, position = WEFT_NO_VALUE
    end type
    type, bind(C) :: weft_rope_scaling ! factor 0: none
        real(c_double) :: factor = 0, low_freq_factor = 0, high_freq_factor = 0
        integer(c_int64_t) :: original_context = 0
        real(c_double) :: beta_fast = 0, beta_slow = 0
        logical(c_bool) :: exact = .false.
    end type
    type, bind(C) :: weft_conv_options
        integer(c_size_t) :: struct_bytes = 88
        integer(c_int64_t) :: stride(3) = 1, padding(3) = 0, dilation(3) = 1, groups = 1
    end type
    type, bind(C) :: weft_routing
        type(weft_value) :: expert, slot, count
        integer(c_int64_t) :: experts = 0, capacity = 0
    end type
    type, bind(C) :: weft_ranks
        integer(c_int) :: count = 1, stride = 1
    end type
    type, bind(C) :: weft_halo
        integer(c_int) :: ranks(8) = -1
        integer(c_int64_t) :: sizes(4) = 0
    end type
    ! The last dimension is the first one of Fortran's arrays.
    type, bind(C) :: weft_grid
        integer(c_size_t) :: struct_bytes = 104
        integer(c_int) :: dimensions = 0
        integer(c_int) :: parts(3) = 1
        integer(c_int64_t) :: cells(3) = 0, before(3) = 0, after(3) = 0
        logical(c_bool) :: periodic(3) = .false._c_bool
    end type
    type, bind(C) :: weft_optimizer
        integer(c_int) :: kind
        real(c_double) :: beta1, beta2, eps, momentum, weight_decay, initial_accumulator
        logical(c_bool) :: decay_all
        integer(c_int) :: decay_rules
        type(c_ptr) :: decay ! c_loc of an array of weft_decay_rule
    end type
    type, bind(C) :: weft_decay_rule
        type(c_ptr) :: match ! c_loc of a name or pattern that ends with c_null_char
        logical(c_bool) :: decay
    end type
    type, bind(C) :: weft_session_options ! begin with weft_session_defaults()
        integer(c_size_t) :: struct_bytes
        type(weft_optimizer) :: optimizer
        real(c_double) :: clip
        integer(c_int) :: microbatches
        logical(c_bool) :: keep_gradients, recompute
        integer(c_int) :: threads
        integer(c_int64_t) :: memory_bytes, seed
        integer(c_int) :: bf16
        type(weft_plan) :: plan
        type(weft_world) :: world
        logical(c_bool) :: recovery
        logical(c_bool) :: buddy
        type(c_ptr) :: disk ! a text that ends with c_null_char: c_loc
        integer(c_int64_t) :: disk_bytes
        integer(c_int) :: rows
        integer(c_int64_t) :: device_bytes, host_bytes, held_bytes
    end type
    type, bind(C) :: weft_session_keeper ! functions of C: c_funloc
        integer(c_size_t) :: struct_bytes = 40 ! c_sizeof of it
        type(c_ptr) :: context = c_null_ptr
        type(c_funptr) :: begin = c_null_funptr, give = c_null_funptr, take = c_null_funptr
    end type
    type, bind(C) :: weft_session_part
        integer(c_int64_t) :: begin(WEFT_MAX_RANK), size(WEFT_MAX_RANK), bytes
        type(c_ptr) :: data
    end type
    type, bind(C) :: weft_session_memory
        integer(c_int64_t) :: predicted_peak_bytes, observed_peak_bytes, program_bytes, parameter_bytes, optimizer_bytes, &
            transient_bytes, saved_bytes
        real(c_double) :: forward_flops, backward_flops
        integer(c_int64_t) :: host_bytes, disk_bytes, lent_bytes
        integer(c_int64_t) :: cache_hits, cache_misses, cache_written
        integer(c_int64_t) :: cache_look_ups, cache_look_ups_hit, cache_ahead
    end type
    type, bind(C) :: weft_lora ! adapters of low rank; rank 0: none
        integer(c_int64_t) :: rank = 0
        real(c_double) :: alpha = 0, dropout = 0
        character(kind=c_char) :: targets(WEFT_LORA_TARGETS) = char(0)
    end type
    type, bind(C) :: weft_model_config ! 0: the family's default
        integer(c_int) :: family = WEFT_FAMILY_GPT2
        integer(c_int64_t) :: layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, context = 0, vocab = 0, head_dim = 0, &
            classes = 0, image(3) = 0, patch = 0, window = 0, window_from = 0
        real(c_double) :: dropout = 0
        logical(c_bool) :: dropout_apart = .false.
        real(c_double) :: attention_dropout = 0, embedding_dropout = 0, norm_eps = 0, rope_theta = 0
        type(weft_rope_scaling) :: rope_scaling
        real(c_double) :: attention_factor = 0
        logical(c_bool) :: tied = .false., untied = .false., attention_bias = .false., mlp_bias = .false., &
            no_qkv_bias = .false.
        integer(c_int64_t) :: experts = 0, experts_per_token = 0
        real(c_double) :: capacity_factor = 0, aux_loss = 0
        type(weft_lora) :: lora
        integer(c_int64_t) :: cache = 0, cache_rows = 0, asked = 0, end_count = 0
        integer(c_int32_t) :: ends(WEFT_MAX_END_TOKENS) = 0
        logical(c_bool) :: has_begin = .false., has_pad = .false.
        integer(c_int32_t) :: begin = 0, pad = 0
    end type
    type, bind(C) :: weft_mindspore_model
        real(c_double) :: alpha, beta, gamma, threshold, constant, bias, capacity
        logical(c_bool) :: inference
    end type
    type, bind(C) :: weft_search_rules
        logical(c_bool) :: fully_use_devices, elementwise_op_strategy_follow, enable_algo_approxi
        real(c_double) :: epsilon
        integer(c_int64_t) :: tensor_slice_align
    end type
    type, bind(C) :: weft_search_options ! begin with weft_search_defaults()
        integer(c_size_t) :: struct_bytes
        integer(c_int) :: search
        type(weft_mindspore_model) :: cost
        integer(c_int) :: cost_model
        type(weft_search_rules) :: rules
        type(c_ptr) :: machine, fix ! set by the arguments of weft_plan_search
        integer(c_int64_t) :: memory_bytes
        integer(c_int) :: evaluations
        real(c_double) :: seconds
    end type
    type, bind(C) :: weft_slow_rank
        integer(c_int) :: rank
        real(c_double) :: factor
    end type
    type, bind(C) :: weft_slow_link
        integer(c_int) :: a, b
        real(c_double) :: factor
    end type
    type, bind(C) :: weft_rank_prediction
        integer(c_int) :: rank, count, stage
        integer(c_int64_t) :: peak_bytes, program_bytes
        real(c_double) :: end_seconds, busy_seconds, exposed_seconds, idle_seconds, transfer_seconds, tier_seconds
    end type
    type, bind(C) :: weft_driver_memory
        integer(c_int64_t) :: bytes = 0, context_bytes = 0, communicator_bytes = 0
        integer(c_int) :: communicators = 0, rank = 0
        logical(c_bool) :: known = .false., fits = .false.
    end type
    type, bind(C) :: c_time_cause
        type(c_ptr) :: name
        real(c_double) :: seconds
    end type
    type, bind(C) :: c_prediction
        real(c_double) :: step_seconds
        type(c_ptr) :: causes
        integer(c_int) :: cause_count, critical_rank
        real(c_double) :: compute_seconds, exposed_seconds, bubble_seconds
        integer(c_int64_t) :: peak_bytes
        integer(c_int) :: peak_rank
        integer(c_int64_t) :: device_bytes
        logical(c_bool) :: fits
        real(c_double) :: tokens_per_second, flops, mfu
        type(c_ptr) :: classes
        integer(c_int) :: class_count, ranks
        logical(c_bool) :: stopped
        integer(c_int) :: waiting, hosts
        type(weft_driver_memory) :: driver
        integer(c_int64_t) :: state_bytes
        real(c_double) :: checkpoint_seconds, tier_seconds
        integer(c_int64_t) :: host_bytes, disk_bytes, host_moved_bytes, disk_moved_bytes, server_bytes, server_moved_bytes
    end type
    type, bind(C) :: c_tensor_info
        type(c_ptr) :: name
        type(weft_desc) :: desc
        integer(c_int) :: role
        integer(c_int64_t) :: bytes
    end type
    type, bind(C) :: c_launcher
        type(c_ptr) :: name
        integer(c_int) :: rank, size, local_rank, local_size, host, hosts
    end type

    ! weft_relu, weft_tanh, ... or a function like them.
    abstract interface
        type(weft_value) function weft_activation(graph, x) bind(C)
            import
            type(weft_graph), value :: graph
            type(weft_value), value :: x
        end function
    end interface

    include 'weft_world.inc'
    include 'weft_collective.inc'
    include 'weft_graph.inc'
    include 'weft_ops.inc'
    include 'weft_plan.inc'
    include 'weft_search.inc'
    include 'weft_session.inc'
    include 'weft_data.inc'

    ! For the module below.
    interface
        integer(c_size_t) function c_strlen(text) bind(C, name='strlen')
            import
            type(c_ptr), value :: text
        end function
        type(c_ptr) function c_status_text(status) bind(C, name='weft_status_text')
            import
            integer(c_int), value :: status
        end function
        type(c_ptr) function c_version() bind(C, name='weft_version')
            import
        end function
        type(c_ptr) function c_error_message() bind(C, name='weft_error_message')
            import
        end function
        type(c_ptr) function c_error_trail() bind(C, name='weft_error_trail')
            import
        end function
        integer(c_int) function weft_error_rank() bind(C, name='weft_error_rank')
            import
        end function
        type(c_ptr) function c_dtype_text(dtype) bind(C, name='weft_dtype_text')
            import
            integer(c_int), value :: dtype
        end function
        type(c_ptr) function c_family_text(family) bind(C, name='weft_family_text')
            import
            integer(c_int), value :: family
        end function
        type(c_ptr) function c_world_communicator(world) bind(C, name='weft_world_communicator')
            import
            type(weft_world), value :: world
        end function
        type(c_ptr) function c_launcher_note(number) bind(C, name='weft_launcher_note')
            import
            integer(c_int), value :: number
        end function
        type(c_ptr) function c_graph_message(graph) bind(C, name='weft_graph_message')
            import
            type(weft_graph), value :: graph
        end function
        integer(c_int) function c_graph_print(graph, out) bind(C, name='weft_graph_print')
            import
            type(weft_graph), value :: graph
            type(c_ptr), intent(out) :: out
        end function
        integer(c_int) function c_plan_print(plan, out) bind(C, name='weft_plan_print')
            import
            type(weft_plan), value :: plan
            type(c_ptr), intent(out) :: out
        end function
        integer(c_int) function c_session_program_text(session, program, rank, out) &
            bind(C, name='weft_session_program_text')
            import
            type(weft_session), value :: session
            integer(c_int), value :: program, rank
            type(c_ptr), intent(out) :: out
        end function
        integer(c_int) function c_session_program_json(session, program, rank, out) &
            bind(C, name='weft_session_program_json')
            import
            type(weft_session), value :: session
            integer(c_int), value :: program, rank
            type(c_ptr), intent(out) :: out
        end function
        integer(c_int) function c_plan_diff(a, b, out) bind(C, name='weft_plan_diff')
            import
            type(weft_plan), value :: a, b
            type(c_ptr), intent(out) :: out
        end function
        integer(c_int) function c_model_config_write(config, out) bind(C, name='weft_model_config_write')
            import
            type(weft_model_config), intent(in) :: config
            type(c_ptr), intent(out) :: out
        end function
        subroutine c_text_free(text) bind(C, name='weft_text_free')
            import
            type(c_ptr), value :: text
        end subroutine
        integer(c_int) function c_launcher_find(out) bind(C, name='weft_launcher_find')
            import
            type(c_launcher), intent(out) :: out
        end function
        integer(c_int) function c_session_tensor(session, program, index, out) bind(C, name='weft_session_tensor')
            import
            type(weft_session), value :: session
            integer(c_int), value :: program, index
            type(c_tensor_info), intent(out) :: out
        end function
        integer(c_int) function c_session_find(session, program, name, out) bind(C, name='weft_fortran_session_find')
            import
            type(weft_session), value :: session
            integer(c_int), value :: program
            character(kind=c_char, len=*), intent(in) :: name
            type(c_tensor_info), intent(out) :: out
        end function
        type(weft_value) function c_matmul(graph, a, b, transpose_a, transpose_b) bind(C, name='weft_fortran_matmul')
            import
            type(weft_graph), value :: graph
            type(weft_value), value :: a, b
            integer(c_int), value :: transpose_a, transpose_b
        end function
        type(weft_value) function c_linear(graph, x, weight, bias, transposed) bind(C, name='weft_fortran_linear')
            import
            type(weft_graph), value :: graph
            type(weft_value), value :: x, weight, bias
            integer(c_int), value :: transposed
        end function
        type(weft_value) function c_reduction(which, graph, x, axes, keep) bind(C, name='weft_fortran_reduction')
            import
            integer(c_int), value :: which, keep
            type(weft_graph), value :: graph
            type(weft_value), value :: x
            integer(c_int), intent(in), optional :: axes(:)
        end function
        type(weft_value) function c_batch_norm(graph, x, gamma, beta, mean, var, momentum, eps, training) &
            bind(C, name='weft_fortran_batch_norm')
            import
            type(weft_graph), value :: graph
            type(weft_value), value :: x, gamma, beta, mean, var
            real(c_double), value :: momentum, eps
            integer(c_int), value :: training
        end function
        type(weft_value) function c_moe_linear(graph, x, weight, transposed, routing) bind(C, name='weft_fortran_moe_linear')
            import
            type(weft_graph), value :: graph
            type(weft_value), value :: x, weight
            integer(c_int), value :: transposed
            type(weft_routing), intent(in), optional :: routing
        end function
        integer(c_int) function c_plan_recompute(plan, mode, match, communication) &
            bind(C, name='weft_fortran_plan_recompute')
            import
            type(weft_plan), value :: plan
            integer(c_int), value :: mode, communication
            character(kind=c_char, len=*), intent(in) :: match
        end function
        integer(c_int) function c_plan_gradients_sum(plan, sum) bind(C, name='weft_fortran_plan_gradients_sum')
            import
            type(weft_plan), value :: plan
            integer(c_int), value :: sum
        end function
        integer(c_int) function c_plan_search(graph, settings, options, machine, fix, out, notes) &
            bind(C, name='weft_fortran_plan_search')
            import
            type(weft_graph), value :: graph
            type(weft_plan), value :: settings
            type(weft_search_options), intent(in), optional :: options
            character(kind=c_char, len=*), intent(in) :: machine, fix
            type(weft_plan), intent(out) :: out
            type(c_ptr), intent(out) :: notes
        end function
        integer(c_int) function c_plan_predict(graph, machine, out, plan, session, tokens, trace, report, rank_count, &
            slow_ranks, link_count, slow_links, failing, fail_seconds) bind(C, name='weft_fortran_plan_predict')
            import
            type(weft_graph), value :: graph
            character(kind=c_char, len=*), intent(in) :: machine
            type(c_ptr), intent(out) :: out
            type(weft_plan), intent(in), optional :: plan
            type(weft_session_options), intent(in), optional :: session
            real(c_double), intent(in), optional :: tokens
            character(kind=c_char, len=*), intent(in) :: trace, report
            type(weft_slow_rank), intent(in) :: slow_ranks(*)
            type(weft_slow_link), intent(in) :: slow_links(*)
            integer(c_int), value :: rank_count, link_count
            integer(c_int), intent(in), optional :: failing
            real(c_double), intent(in), optional :: fail_seconds
        end function
        subroutine c_prediction_free(prediction) bind(C, name='weft_prediction_free')
            import
            type(c_ptr), value :: prediction
        end subroutine
        integer(c_int) function c_plan_overlap(plan, overlap) bind(C, name='weft_fortran_plan_overlap')
            import
            type(weft_plan), value :: plan
            integer(c_int), value :: overlap
        end function
    end interface
end module

module weft
    use, intrinsic :: iso_c_binding, only: c_ptr, c_bool, c_char, c_double, c_int, c_int64_t, c_associated, c_f_pointer
    use weft_c
    implicit none
    private :: c_ptr, c_bool, c_char, c_double, c_int, c_int64_t, c_associated, c_f_pointer
    private :: c_strlen, c_status_text, c_version, c_error_message, c_error_trail, c_dtype_text, c_family_text, &
        c_world_communicator, c_launcher_note, c_graph_message, c_graph_print, c_plan_print, c_plan_diff, &
        c_session_program_text, c_session_program_json, &
        c_model_config_write, c_text_free, &
        c_launcher_find, c_session_tensor, c_session_find, c_matmul, c_linear, c_reduction, c_batch_norm, c_moe_linear, &
        c_plan_recompute, c_plan_gradients_sum, c_plan_overlap, c_plan_search, c_plan_predict, c_prediction_free, &
        c_tensor_info, c_launcher, c_time_cause, c_prediction
    private :: text_of, take_text, given, flag, take_info, take_prediction

    ! The same with texts of Fortran.
    type :: weft_tensor_info
        character(len=:), allocatable :: name
        type(weft_desc) :: desc
        integer :: role = 0
        integer(c_int64_t) :: bytes = 0
    end type
    type :: weft_time_cause
        character(len=:), allocatable :: name
        real(c_double) :: seconds = 0
    end type
    type :: weft_prediction
        real(c_double) :: step_seconds = 0, compute_seconds = 0, exposed_seconds = 0, bubble_seconds = 0, &
            tokens_per_second = 0, flops = 0, mfu = 0
        type(weft_time_cause), allocatable :: causes(:)
        type(weft_rank_prediction), allocatable :: classes(:)
        integer :: critical_rank = 0, peak_rank = 0, ranks = 0, waiting = 0, hosts = 0
        integer(c_int64_t) :: peak_bytes = 0, device_bytes = 0, state_bytes = 0
        type(weft_driver_memory) :: driver
        real(c_double) :: checkpoint_seconds = 0
        logical :: fits = .false., stopped = .false.
    end type
    type :: weft_launcher
        character(len=:), allocatable :: name ! '': none
        integer :: rank = 0, size = 1, local_rank = -1, local_size = -1, host = -1, hosts = -1
    end type

contains

    function text_of(from) result(text)
        type(c_ptr), intent(in) :: from
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        integer :: i, length
        length = 0
        if (c_associated(from)) length = int(c_strlen(from))
        allocate (character(len=length) :: text)
        if (length > 0) call c_f_pointer(from, letters, [length])
        do i = 1, length
            text(i:i) = letters(i)
        end do
    end function
    ! What the library made for its caller.
    subroutine take_text(status, from, text)
        integer, intent(in) :: status
        type(c_ptr), intent(in) :: from
        character(len=:), allocatable, intent(out) :: text
        text = ''
        if (status < 0) return
        text = text_of(from)
        call c_text_free(from)
    end subroutine
    function given(text) result(same) ! '': left out
        character(len=*), intent(in), optional :: text
        character(len=:), allocatable :: same
        same = ''
        if (present(text)) same = text
    end function
    integer(c_int) function flag(said)
        logical, intent(in), optional :: said
        flag = 0
        if (present(said)) flag = merge(1, 0, said)
    end function

    ! --- texts ---

    function weft_version() result(text)
        character(len=:), allocatable :: text
        text = text_of(c_version())
    end function
    function weft_status_text(status) result(text)
        integer, intent(in) :: status
        character(len=:), allocatable :: text
        text = text_of(c_status_text(status))
    end function
    ! Of the last failure.
    function weft_error_message() result(text)
        character(len=:), allocatable :: text
        text = text_of(c_error_message())
    end function
    function weft_error_trail() result(text)
        character(len=:), allocatable :: text
        text = text_of(c_error_trail())
    end function
    function weft_dtype_text(dtype) result(text)
        integer, intent(in) :: dtype
        character(len=:), allocatable :: text
        text = text_of(c_dtype_text(dtype))
    end function
    function weft_family_text(family) result(text)
        integer, intent(in) :: family
        character(len=:), allocatable :: text
        text = text_of(c_family_text(family))
    end function
    function weft_world_communicator(world) result(text)
        type(weft_world), intent(in) :: world
        character(len=:), allocatable :: text
        text = text_of(c_world_communicator(world))
    end function
    ! Without such a note: ''.
    function weft_launcher_note(number) result(text)
        integer(c_int), intent(in) :: number
        character(len=:), allocatable :: text
        text = text_of(c_launcher_note(number))
    end function
    function weft_graph_message(graph) result(text)
        type(weft_graph), intent(in) :: graph
        character(len=:), allocatable :: text
        text = text_of(c_graph_message(graph))
    end function
    integer function weft_graph_print(graph, text) result(status)
        type(weft_graph), intent(in) :: graph
        character(len=:), allocatable, intent(out) :: text
        type(c_ptr) :: from
        status = c_graph_print(graph, from)
        call take_text(status, from, text)
    end function
    integer function weft_plan_print(plan, text) result(status)
        type(weft_plan), intent(in) :: plan
        character(len=:), allocatable, intent(out) :: text
        type(c_ptr) :: from
        status = c_plan_print(plan, from)
        call take_text(status, from, text)
    end function
    integer function weft_session_program_text(session, program, rank, text) result(status)
        type(weft_session), intent(in) :: session
        integer, intent(in) :: program, rank
        character(len=:), allocatable, intent(out) :: text
        type(c_ptr) :: from
        status = c_session_program_text(session, int(program, c_int), int(rank, c_int), from)
        call take_text(status, from, text)
    end function
    integer function weft_session_program_json(session, program, rank, text) result(status)
        type(weft_session), intent(in) :: session
        integer, intent(in) :: program, rank
        character(len=:), allocatable, intent(out) :: text
        type(c_ptr) :: from
        status = c_session_program_json(session, int(program, c_int), int(rank, c_int), from)
        call take_text(status, from, text)
    end function
    integer function weft_plan_diff(a, b, text) result(status)
        type(weft_plan), intent(in) :: a, b
        character(len=:), allocatable, intent(out) :: text
        type(c_ptr) :: from
        status = c_plan_diff(a, b, from)
        call take_text(status, from, text)
    end function
    ! Without notes: ''.
    integer function weft_plan_search(graph, settings, plan, options, machine, fix, notes) result(status)
        type(weft_graph), intent(in) :: graph
        type(weft_plan), intent(in) :: settings
        type(weft_plan), intent(out) :: plan
        type(weft_search_options), intent(in), optional :: options
        character(len=*), intent(in), optional :: machine, fix
        character(len=:), allocatable, intent(out), optional :: notes
        character(len=:), allocatable :: text
        type(c_ptr) :: from
        status = c_plan_search(graph, settings, options, given(machine), given(fix), plan, from)
        call take_text(status, from, text)
        if (present(notes)) notes = text
    end function
    integer function weft_model_config_write(config, text) result(status)
        type(weft_model_config), intent(in) :: config
        character(len=:), allocatable, intent(out) :: text
        type(c_ptr) :: from
        status = c_model_config_write(config, from)
        call take_text(status, from, text)
    end function

    ! --- structures with texts ---

    subroutine take_prediction(c, prediction)
        type(c_prediction), intent(in) :: c
        type(weft_prediction), intent(inout) :: prediction
        type(c_time_cause), pointer :: causes(:)
        type(weft_rank_prediction), pointer :: classes(:)
        integer :: i
        prediction%step_seconds = c%step_seconds
        prediction%compute_seconds = c%compute_seconds
        prediction%exposed_seconds = c%exposed_seconds
        prediction%bubble_seconds = c%bubble_seconds
        prediction%tokens_per_second = c%tokens_per_second
        prediction%flops = c%flops
        prediction%mfu = c%mfu
        prediction%critical_rank = c%critical_rank
        prediction%peak_rank = c%peak_rank
        prediction%ranks = c%ranks
        prediction%waiting = c%waiting
        prediction%hosts = c%hosts
        prediction%driver = c%driver
        prediction%state_bytes = c%state_bytes
        prediction%checkpoint_seconds = c%checkpoint_seconds
        prediction%peak_bytes = c%peak_bytes
        prediction%device_bytes = c%device_bytes
        prediction%fits = c%fits
        prediction%stopped = c%stopped
        allocate (prediction%causes(c%cause_count), prediction%classes(c%class_count))
        call c_f_pointer(c%causes, causes, [c%cause_count])
        do i = 1, c%cause_count
            prediction%causes(i)%name = text_of(causes(i)%name)
            prediction%causes(i)%seconds = causes(i)%seconds
        end do
        call c_f_pointer(c%classes, classes, [c%class_count])
        do i = 1, c%class_count
            prediction%classes(i) = classes(i)
        end do
    end subroutine
    ! Without a plan: one device.
    integer function weft_plan_predict(graph, machine, prediction, plan, session, tokens, trace, report, slow_ranks, &
        slow_links, failing, fail_seconds) result(status)
        type(weft_graph), intent(in) :: graph
        character(len=*), intent(in) :: machine
        type(weft_prediction), intent(out) :: prediction
        type(weft_plan), intent(in), optional :: plan
        type(weft_session_options), intent(in), optional :: session
        real(c_double), intent(in), optional :: tokens, fail_seconds
        character(len=*), intent(in), optional :: trace, report
        type(weft_slow_rank), intent(in), optional :: slow_ranks(:)
        type(weft_slow_link), intent(in), optional :: slow_links(:)
        integer(c_int), intent(in), optional :: failing
        type(weft_slow_rank), allocatable :: slow(:)
        type(weft_slow_link), allocatable :: links(:)
        type(c_prediction), pointer :: made
        type(c_ptr) :: from
        allocate (slow(0), links(0))
        if (present(slow_ranks)) slow = slow_ranks
        if (present(slow_links)) links = slow_links
        status = c_plan_predict(graph, machine, from, plan, session, tokens, given(trace), given(report), &
            size(slow, kind=c_int), slow, size(links, kind=c_int), links, failing, fail_seconds)
        if (status < 0) return
        call c_f_pointer(from, made)
        call take_prediction(made, prediction)
        call c_prediction_free(from)
    end function

    integer function weft_launcher_find(launcher) result(status)
        type(weft_launcher), intent(out) :: launcher
        type(c_launcher) :: c
        status = c_launcher_find(c)
        if (status < 0) return
        launcher%name = text_of(c%name)
        launcher%rank = c%rank
        launcher%size = c%size
        launcher%local_rank = c%local_rank
        launcher%local_size = c%local_size
        launcher%host = c%host
        launcher%hosts = c%hosts
    end function
    subroutine take_info(c, info)
        type(c_tensor_info), intent(in) :: c
        type(weft_tensor_info), intent(inout) :: info
        info%name = text_of(c%name)
        info%desc = c%desc
        info%role = c%role
        info%bytes = c%bytes
    end subroutine
    integer function weft_session_tensor(session, program, index, info) result(status)
        type(weft_session), intent(in) :: session
        integer, intent(in) :: program, index
        type(weft_tensor_info), intent(out) :: info
        type(c_tensor_info) :: c
        status = c_session_tensor(session, program, index, c)
        if (status >= 0) call take_info(c, info)
    end function
    integer function weft_session_find(session, program, name, info) result(status)
        type(weft_session), intent(in) :: session
        integer, intent(in) :: program
        character(len=*), intent(in) :: name
        type(weft_tensor_info), intent(out) :: info
        type(c_tensor_info) :: c
        status = c_session_find(session, program, name, c)
        if (status >= 0) call take_info(c, info)
    end function

    ! --- logical arguments: .false. where they are left out ---

    type(weft_value) function weft_matmul(graph, a, b, transpose_a, transpose_b) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: a, b
        logical, intent(in), optional :: transpose_a, transpose_b
        value = c_matmul(graph, a, b, flag(transpose_a), flag(transpose_b))
    end function
    type(weft_value) function weft_linear(graph, x, weight, bias, transposed) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x, weight
        type(weft_value), intent(in), optional :: bias
        logical, intent(in), optional :: transposed
        type(weft_value) :: added
        added = WEFT_NO_VALUE
        if (present(bias)) added = bias
        value = c_linear(graph, x, weight, added, flag(transposed))
    end function
    ! Over all axes where none are said.
    type(weft_value) function weft_sum(graph, x, axes, keep) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        integer, intent(in), optional :: axes(:)
        logical, intent(in), optional :: keep
        value = c_reduction(0, graph, x, axes, flag(keep))
    end function
    type(weft_value) function weft_mean(graph, x, axes, keep) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        integer, intent(in), optional :: axes(:)
        logical, intent(in), optional :: keep
        value = c_reduction(1, graph, x, axes, flag(keep))
    end function
    type(weft_value) function weft_max(graph, x, axes, keep) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        integer, intent(in), optional :: axes(:)
        logical, intent(in), optional :: keep
        value = c_reduction(2, graph, x, axes, flag(keep))
    end function
    type(weft_value) function weft_batch_norm(graph, x, gamma, beta, mean, var, momentum, eps, training) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x, gamma, beta, mean, var
        real(c_double), intent(in) :: momentum, eps
        logical, intent(in) :: training
        value = c_batch_norm(graph, x, gamma, beta, mean, var, momentum, eps, flag(training))
    end function
    type(weft_value) function weft_moe_linear(graph, x, weight, transposed, routing) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x, weight
        logical, intent(in) :: transposed
        type(weft_routing), intent(in), optional :: routing
        value = c_moe_linear(graph, x, weight, flag(transposed), routing)
    end function
    ! All cells where no `match` is said.
    integer function weft_plan_recompute(plan, mode, match, communication) result(status)
        type(weft_plan), intent(in) :: plan
        integer, intent(in) :: mode
        character(len=*), intent(in), optional :: match
        logical, intent(in), optional :: communication
        character(len=:), allocatable :: pattern
        pattern = ''
        if (present(match)) pattern = match
        status = c_plan_recompute(plan, mode, pattern, flag(communication))
    end function
    integer function weft_plan_gradients_sum(plan, sum) result(status)
        type(weft_plan), intent(in) :: plan
        logical, intent(in) :: sum
        status = c_plan_gradients_sum(plan, flag(sum))
    end function
    integer function weft_plan_overlap(plan, overlap) result(status)
        type(weft_plan), intent(in) :: plan
        logical, intent(in) :: overlap
        status = c_plan_overlap(plan, flag(overlap))
    end function
end module
