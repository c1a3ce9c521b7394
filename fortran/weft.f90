! weft for Fortran 2018: worlds on communicators of MPI, collectives, graphs, plans and sessions.
!
!     mpicc   -c $(pkg-config --cflags weft) weft_fortran.c
!     mpifort -c weft.f90
!     mpifort program.f90 weft.o weft_fortran.o $(pkg-config --libs weft)
!
! Names, arguments and meanings are those of the C headers, which say all that is not said here. Functions that can
! fail return a status: 0 or more is success, weft_error_message() says what was wrong. Shapes are written as in C, the
! dimension that varies fastest last: a tensor [batch, features] is an array (features, batch) of Fortran.
! Communicators are integers, as of `use mpi`; of an mpi_f08 communicator take comm%MPI_VAL.
module weft
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
    implicit none
    private

    integer, parameter, public :: WEFT_OK = 0, WEFT_PENDING = 1, WEFT_E_ARG = -1, WEFT_E_SHAPE = -2, WEFT_E_LAYOUT = -3, &
        WEFT_E_NO_IMPL = -4, WEFT_E_NOT_FOUND = -5, WEFT_E_NOMEM = -20, WEFT_E_IO = -21, WEFT_E_CORRUPT = -22, &
        WEFT_E_NUMERIC = -23, WEFT_E_STOPPED = -24, WEFT_E_PEER = -40, WEFT_E_TIMEOUT = -41, WEFT_E_MISMATCH = -42, &
        WEFT_E_DEVICE = -60, WEFT_E_BUG = -99
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
        enumerator :: WEFT_SGD, WEFT_MOMENTUM, WEFT_NESTEROV, WEFT_ADAM, WEFT_ADAMW, WEFT_LAMB, WEFT_LION, &
            WEFT_ADAFACTOR, WEFT_NO_OPTIMIZER
    end enum
    enum, bind(C)
        enumerator :: WEFT_PIPELINE_GPIPE, WEFT_PIPELINE_1F1B, WEFT_PIPELINE_INTERLEAVED, WEFT_PIPELINE_ZERO_BUBBLE
    end enum
    public :: WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_F64, WEFT_I32, WEFT_I64, WEFT_U16, WEFT_U8, WEFT_BOOL
    public :: WEFT_REDUCE_SUM, WEFT_REDUCE_MAX, WEFT_REDUCE_MIN, WEFT_REDUCE_PROD
    public :: WEFT_INIT_ZEROS, WEFT_INIT_CONSTANT, WEFT_INIT_NORMAL, WEFT_INIT_UNIFORM
    public :: WEFT_SGD, WEFT_MOMENTUM, WEFT_NESTEROV, WEFT_ADAM, WEFT_ADAMW, WEFT_LAMB, WEFT_LION, WEFT_ADAFACTOR, &
        WEFT_NO_OPTIMIZER
    public :: WEFT_PIPELINE_GPIPE, WEFT_PIPELINE_1F1B, WEFT_PIPELINE_INTERLEAVED, WEFT_PIPELINE_ZERO_BUBBLE

    type, public :: weft_world
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public :: weft_group
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public :: weft_graph
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public :: weft_plan
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public :: weft_session
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public, bind(C) :: weft_value
        integer(c_int32_t) :: id = -1
    end type
    type(weft_value), parameter, public :: WEFT_NO_VALUE = weft_value(-1)

    ! Begin with weft_session_defaults(). Logical ones are 0 or 1.
    type, public, bind(C) :: weft_session_options
        integer(c_int32_t) :: optimizer, decay_all, microbatches, keep_gradients, recompute, threads
        real(c_double) :: beta1, beta2, eps, momentum, weight_decay, clip
        integer(c_int64_t) :: memory_bytes, seed
    end type

    public :: weft_status_text, weft_error_message
    public :: weft_world_from_mpi, weft_world_join, weft_world_leave, weft_world_rank, weft_world_size, weft_world_communicator
    public :: weft_group_create, weft_group_destroy
    public :: weft_all_reduce, weft_all_reduce_in_place, weft_all_gather, weft_reduce_scatter, weft_all_to_all, &
        weft_broadcast, weft_reduce, weft_gather, weft_scatter, weft_send, weft_recv, weft_barrier
    public :: weft_graph_create, weft_graph_destroy, weft_graph_status, weft_graph_message
    public :: weft_input, weft_param, weft_cell_begin, weft_cell_end, weft_output, weft_loss
    public :: weft_add, weft_sub, weft_mul, weft_div, weft_neg, weft_exp, weft_log, weft_sqrt, weft_tanh, weft_sigmoid, &
        weft_relu, weft_gelu, weft_silu, weft_scale, weft_shift, weft_matmul, weft_linear, weft_mse, weft_cross_entropy, &
        weft_layer_norm, weft_reshape, weft_concat
    public :: weft_plan_create, weft_plan_destroy, weft_plan_axis, weft_op_split, weft_tensor_split, weft_plan_optimizer, &
        weft_plan_pipeline, weft_plan_stage
    public :: weft_session_defaults, weft_session_create, weft_session_destroy, weft_session_add, weft_session_step, &
        weft_session_accumulate, weft_session_update, weft_session_forward, weft_session_feed, weft_session_read, &
        weft_session_write

    ! Arrays are contiguous; a program is the number that weft_session_add gave, 0 (the first) if it is left out.
    interface weft_session_feed
        module procedure feed_real32, feed_real64, feed_int32
    end interface
    interface weft_session_read
        module procedure read_real32, read_real64, read_int32
    end interface
    interface weft_session_write
        module procedure write_real32, write_real64, write_int32
    end interface

    interface
        function c_status_text(status) bind(C, name='weft_status_text')
            import
            integer(c_int), value :: status
            type(c_ptr) :: c_status_text
        end function
        function c_error_message() bind(C, name='weft_error_message')
            import
            type(c_ptr) :: c_error_message
        end function
        function c_strlen(text) bind(C, name='strlen')
            import
            type(c_ptr), value :: text
            integer(c_size_t) :: c_strlen
        end function

        integer(c_int) function c_world_from_mpi(comm, communicator, seconds, out) bind(C, name='weft_fortran_world_from_mpi')
            import
            integer(c_int), value :: comm
            character(kind=c_char), intent(in) :: communicator(*)
            real(c_double), value :: seconds
            type(c_ptr), intent(out) :: out
        end function
        integer(c_int) function c_world_join(options, out) bind(C, name='weft_world_join')
            import
            type(c_ptr), value :: options
            type(c_ptr), intent(out) :: out
        end function
        subroutine c_world_leave(world) bind(C, name='weft_world_leave')
            import
            type(c_ptr), value :: world
        end subroutine
        integer(c_int) function c_world_rank(world) bind(C, name='weft_world_rank')
            import
            type(c_ptr), value :: world
        end function
        integer(c_int) function c_world_size(world) bind(C, name='weft_world_size')
            import
            type(c_ptr), value :: world
        end function
        function c_world_communicator(world) bind(C, name='weft_world_communicator')
            import
            type(c_ptr), value :: world
            type(c_ptr) :: c_world_communicator
        end function
        integer(c_int) function c_group_create(world, ranks, count, out) bind(C, name='weft_group_create')
            import
            type(c_ptr), value :: world
            integer(c_int), intent(in) :: ranks(*)
            integer(c_int), value :: count
            type(c_ptr), intent(out) :: out
        end function
        subroutine c_group_destroy(group) bind(C, name='weft_group_destroy')
            import
            type(c_ptr), value :: group
        end subroutine

        ! Addresses, so that source and destination may be the same.
        integer(c_int) function c_all_reduce(world, group, source, destination, count, dtype, reduction) &
            bind(C, name='weft_all_reduce')
            import
            type(c_ptr), value :: world, group, source, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, reduction
        end function
        integer(c_int) function c_all_gather(world, group, source, destination, count, dtype) bind(C, name='weft_all_gather')
            import
            type(c_ptr), value :: world, group, source, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype
        end function
        integer(c_int) function c_reduce_scatter(world, group, source, destination, count, dtype, reduction) &
            bind(C, name='weft_reduce_scatter')
            import
            type(c_ptr), value :: world, group, source, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, reduction
        end function
        integer(c_int) function c_all_to_all(world, group, source, destination, count, dtype) bind(C, name='weft_all_to_all')
            import
            type(c_ptr), value :: world, group, source, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype
        end function
        integer(c_int) function c_broadcast(world, group, buffer, count, dtype, root) bind(C, name='weft_broadcast')
            import
            type(c_ptr), value :: world, group, buffer
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, root
        end function
        integer(c_int) function c_reduce(world, group, source, destination, count, dtype, reduction, root) &
            bind(C, name='weft_reduce')
            import
            type(c_ptr), value :: world, group, source, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, reduction, root
        end function
        integer(c_int) function c_gather(world, group, source, destination, count, dtype, root) bind(C, name='weft_gather')
            import
            type(c_ptr), value :: world, group, source, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, root
        end function
        integer(c_int) function c_scatter(world, group, source, destination, count, dtype, root) bind(C, name='weft_scatter')
            import
            type(c_ptr), value :: world, group, source, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, root
        end function
        integer(c_int) function c_send(world, group, source, count, dtype, to, tag) bind(C, name='weft_send')
            import
            type(c_ptr), value :: world, group, source
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, to, tag
        end function
        integer(c_int) function c_recv(world, group, destination, count, dtype, from, tag) bind(C, name='weft_recv')
            import
            type(c_ptr), value :: world, group, destination
            integer(c_int64_t), value :: count
            integer(c_int), value :: dtype, from, tag
        end function
        integer(c_int) function c_barrier(world, group) bind(C, name='weft_barrier')
            import
            type(c_ptr), value :: world, group
        end function
    end interface

    interface
        integer(c_int) function c_graph_create(out) bind(C, name='weft_graph_create')
            import
            type(c_ptr), intent(out) :: out
        end function
        subroutine c_graph_destroy(graph) bind(C, name='weft_graph_destroy')
            import
            type(c_ptr), value :: graph
        end subroutine
        integer(c_int) function c_graph_status(graph) bind(C, name='weft_graph_status')
            import
            type(c_ptr), value :: graph
        end function
        function c_graph_message(graph) bind(C, name='weft_graph_message')
            import
            type(c_ptr), value :: graph
            type(c_ptr) :: c_graph_message
        end function
        type(weft_value) function c_input(graph, name, dtype, rank, shape) bind(C, name='weft_fortran_input')
            import
            type(c_ptr), value :: graph
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: dtype, rank
            integer(c_int64_t), intent(in) :: shape(*)
        end function
        type(weft_value) function c_param(graph, name, dtype, rank, shape, kind, scale) bind(C, name='weft_fortran_param')
            import
            type(c_ptr), value :: graph
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: dtype, rank, kind
            integer(c_int64_t), intent(in) :: shape(*)
            real(c_double), value :: scale
        end function
        subroutine c_cell_begin(graph, name) bind(C, name='weft_fortran_cell_begin')
            import
            type(c_ptr), value :: graph
            character(kind=c_char), intent(in) :: name(*)
        end subroutine
        type(weft_value) function c_cell_end(graph, value) bind(C, name='weft_cell_end')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: value
        end function
        subroutine c_output(graph, name, value) bind(C, name='weft_output')
            import
            type(c_ptr), value :: graph
            character(kind=c_char), intent(in) :: name(*)
            type(weft_value), value :: value
        end subroutine
        subroutine c_loss(graph, value) bind(C, name='weft_loss')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: value
        end subroutine
        type(weft_value) function c_add(graph, a, b) bind(C, name='weft_add')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: a, b
        end function
        type(weft_value) function c_sub(graph, a, b) bind(C, name='weft_sub')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: a, b
        end function
        type(weft_value) function c_mul(graph, a, b) bind(C, name='weft_mul')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: a, b
        end function
        type(weft_value) function c_div(graph, a, b) bind(C, name='weft_div')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: a, b
        end function
        type(weft_value) function c_mse(graph, a, b) bind(C, name='weft_mse')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: a, b
        end function
        type(weft_value) function c_neg(graph, x) bind(C, name='weft_neg')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_exp(graph, x) bind(C, name='weft_exp')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_log(graph, x) bind(C, name='weft_log')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_sqrt(graph, x) bind(C, name='weft_sqrt')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_tanh(graph, x) bind(C, name='weft_tanh')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_sigmoid(graph, x) bind(C, name='weft_sigmoid')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_relu(graph, x) bind(C, name='weft_relu')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_gelu(graph, x) bind(C, name='weft_gelu')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_silu(graph, x) bind(C, name='weft_silu')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
        end function
        type(weft_value) function c_scale(graph, x, factor) bind(C, name='weft_scale')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
            real(c_double), value :: factor
        end function
        type(weft_value) function c_shift(graph, x, term) bind(C, name='weft_shift')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
            real(c_double), value :: term
        end function
        type(weft_value) function c_matmul(graph, a, b, transpose_a, transpose_b) bind(C, name='weft_matmul')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: a, b
            logical(c_bool), value :: transpose_a, transpose_b
        end function
        type(weft_value) function c_linear(graph, x, weight, bias, transposed) bind(C, name='weft_linear')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x, weight, bias
            logical(c_bool), value :: transposed
        end function
        type(weft_value) function c_cross_entropy(graph, logits, targets, ignore, smoothing) bind(C, name='weft_cross_entropy')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: logits, targets
            integer(c_int64_t), value :: ignore
            real(c_double), value :: smoothing
        end function
        type(weft_value) function c_layer_norm(graph, x, gamma, beta, eps) bind(C, name='weft_layer_norm')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x, gamma, beta
            real(c_double), value :: eps
        end function
        type(weft_value) function c_reshape(graph, x, rank, shape) bind(C, name='weft_reshape')
            import
            type(c_ptr), value :: graph
            type(weft_value), value :: x
            integer(c_int), value :: rank
            integer(c_int64_t), intent(in) :: shape(*)
        end function
        type(weft_value) function c_concat(graph, count, x, axis) bind(C, name='weft_concat')
            import
            type(c_ptr), value :: graph
            integer(c_int), value :: count, axis
            type(weft_value), intent(in) :: x(*)
        end function
    end interface

    interface
        integer(c_int) function c_plan_create(devices, out) bind(C, name='weft_plan_create')
            import
            integer(c_int), value :: devices
            type(c_ptr), intent(out) :: out
        end function
        subroutine c_plan_destroy(plan) bind(C, name='weft_plan_destroy')
            import
            type(c_ptr), value :: plan
        end subroutine
        integer(c_int) function c_plan_axis(plan, name, size) bind(C, name='weft_plan_axis')
            import
            type(c_ptr), value :: plan
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: size
        end function
        integer(c_int) function c_op_split(plan, match, split) bind(C, name='weft_op_split')
            import
            type(c_ptr), value :: plan
            character(kind=c_char), intent(in) :: match(*), split(*)
        end function
        integer(c_int) function c_tensor_split(plan, match, layout) bind(C, name='weft_tensor_split')
            import
            type(c_ptr), value :: plan
            character(kind=c_char), intent(in) :: match(*), layout(*)
        end function
        integer(c_int) function c_plan_optimizer(plan, level, threshold, shard) bind(C, name='weft_plan_optimizer')
            import
            type(c_ptr), value :: plan
            integer(c_int), value :: level, shard
            integer(c_int64_t), value :: threshold
        end function
        integer(c_int) function c_plan_pipeline(plan, stages, microbatches, schedule, chunks) bind(C, name='weft_plan_pipeline')
            import
            type(c_ptr), value :: plan
            integer(c_int), value :: stages, microbatches, schedule, chunks
        end function
        integer(c_int) function c_plan_stage(plan, match, stage) bind(C, name='weft_plan_stage')
            import
            type(c_ptr), value :: plan
            character(kind=c_char), intent(in) :: match(*)
            integer(c_int), value :: stage
        end function

        subroutine c_defaults(out) bind(C, name='weft_fortran_defaults')
            import
            type(weft_session_options), intent(out) :: out
        end subroutine
        integer(c_int) function c_session_create(graph, options, plan, world, out) bind(C, name='weft_fortran_session_create')
            import
            type(c_ptr), value :: graph, plan, world
            type(weft_session_options), intent(in) :: options
            type(c_ptr), intent(out) :: out
        end function
        subroutine c_session_destroy(session) bind(C, name='weft_session_destroy')
            import
            type(c_ptr), value :: session
        end subroutine
        integer(c_int) function c_session_add(session, graph, out) bind(C, name='weft_session_add')
            import
            type(c_ptr), value :: session, graph
            integer(c_int), intent(out) :: out
        end function
        integer(c_int) function c_session_step(session, rate, loss) bind(C, name='weft_session_step')
            import
            type(c_ptr), value :: session
            real(c_double), value :: rate
            real(c_double), intent(out) :: loss
        end function
        integer(c_int) function c_session_accumulate(session, loss) bind(C, name='weft_session_accumulate')
            import
            type(c_ptr), value :: session
            real(c_double), intent(out) :: loss
        end function
        integer(c_int) function c_session_update(session, rate, norm) bind(C, name='weft_session_update')
            import
            type(c_ptr), value :: session
            real(c_double), value :: rate
            type(c_ptr), value :: norm
        end function
        integer(c_int) function c_session_forward(session, program, loss) bind(C, name='weft_session_forward')
            import
            type(c_ptr), value :: session
            integer(c_int), value :: program
            type(c_ptr), value :: loss
        end function
        integer(c_int) function c_session_feed(session, program, name, data, bytes) bind(C, name='weft_session_feed')
            import
            type(c_ptr), value :: session, data
            integer(c_int), value :: program
            character(kind=c_char), intent(in) :: name(*)
            integer(c_size_t), value :: bytes
        end function
        integer(c_int) function c_session_read(session, program, name, data, bytes) bind(C, name='weft_session_read')
            import
            type(c_ptr), value :: session, data
            integer(c_int), value :: program
            character(kind=c_char), intent(in) :: name(*)
            integer(c_size_t), value :: bytes
        end function
        integer(c_int) function c_session_write(session, program, name, data, bytes) bind(C, name='weft_session_write')
            import
            type(c_ptr), value :: session, data
            integer(c_int), value :: program
            character(kind=c_char), intent(in) :: name(*)
            integer(c_size_t), value :: bytes
        end function
    end interface

contains

    ! --- texts ---

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
    pure function c_text(text)
        character(len=*), intent(in) :: text
        character(kind=c_char, len=:), allocatable :: c_text
        c_text = trim(text)//c_null_char
    end function

    function weft_status_text(status) result(text)
        integer, intent(in) :: status
        character(len=:), allocatable :: text
        text = text_of(c_status_text(int(status, c_int)))
    end function
    ! Of the last failure.
    function weft_error_message() result(text)
        character(len=:), allocatable :: text
        text = text_of(c_error_message())
    end function

    ! --- worlds ---

    integer function weft_world_from_mpi(comm, world, communicator, wait_seconds) result(status)
        integer, intent(in) :: comm
        type(weft_world), intent(out) :: world
        character(len=*), intent(in), optional :: communicator
        real(real64), intent(in), optional :: wait_seconds
        character(len=:), allocatable :: name
        real(c_double) :: seconds
        name = ''
        seconds = 0
        if (present(communicator)) name = communicator
        if (present(wait_seconds)) seconds = wait_seconds
        status = c_world_from_mpi(int(comm, c_int), c_text(name), seconds, world%handle)
    end function
    integer function weft_world_join(world) result(status)
        type(weft_world), intent(out) :: world
        status = c_world_join(c_null_ptr, world%handle)
    end function
    subroutine weft_world_leave(world)
        type(weft_world), intent(inout) :: world
        call c_world_leave(world%handle)
        world%handle = c_null_ptr
    end subroutine
    integer function weft_world_rank(world)
        type(weft_world), intent(in) :: world
        weft_world_rank = c_world_rank(world%handle)
    end function
    integer function weft_world_size(world)
        type(weft_world), intent(in) :: world
        weft_world_size = c_world_size(world%handle)
    end function
    function weft_world_communicator(world) result(text)
        type(weft_world), intent(in) :: world
        character(len=:), allocatable :: text
        text = text_of(c_world_communicator(world%handle))
    end function

    ! Ranks count from 0, ascending.
    integer function weft_group_create(world, ranks, group) result(status)
        type(weft_world), intent(in) :: world
        integer, intent(in) :: ranks(:)
        type(weft_group), intent(out) :: group
        status = c_group_create(world%handle, int(ranks, c_int), int(size(ranks), c_int), group%handle)
    end function
    subroutine weft_group_destroy(group)
        type(weft_group), intent(inout) :: group
        call c_group_destroy(group%handle)
        group%handle = c_null_ptr
    end subroutine

    ! --- collectives: buffers of any type and shape, counts of elements; without a group: all ranks ---

    type(c_ptr) function members(group)
        type(weft_group), intent(in), optional :: group
        members = c_null_ptr
        if (present(group)) members = group%handle
    end function

    integer function weft_all_reduce(world, source, destination, count, dtype, reduction, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, reduction
        type(weft_group), intent(in), optional :: group
        status = c_all_reduce(world%handle, members(group), c_loc(source), c_loc(destination), count, dtype, reduction)
    end function
    integer function weft_all_reduce_in_place(world, buffer, count, dtype, reduction, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(inout), target :: buffer
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, reduction
        type(weft_group), intent(in), optional :: group
        status = c_all_reduce(world%handle, members(group), c_loc(buffer), c_loc(buffer), count, dtype, reduction)
    end function
    integer function weft_all_gather(world, source, destination, count, dtype, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype
        type(weft_group), intent(in), optional :: group
        status = c_all_gather(world%handle, members(group), c_loc(source), c_loc(destination), count, dtype)
    end function
    integer function weft_reduce_scatter(world, source, destination, count, dtype, reduction, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, reduction
        type(weft_group), intent(in), optional :: group
        status = c_reduce_scatter(world%handle, members(group), c_loc(source), c_loc(destination), count, dtype, reduction)
    end function
    integer function weft_all_to_all(world, source, destination, count, dtype, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype
        type(weft_group), intent(in), optional :: group
        status = c_all_to_all(world%handle, members(group), c_loc(source), c_loc(destination), count, dtype)
    end function
    integer function weft_broadcast(world, buffer, count, dtype, root, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(inout), target :: buffer
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, root
        type(weft_group), intent(in), optional :: group
        status = c_broadcast(world%handle, members(group), c_loc(buffer), count, dtype, root)
    end function
    integer function weft_reduce(world, source, destination, count, dtype, reduction, root, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, reduction, root
        type(weft_group), intent(in), optional :: group
        status = c_reduce(world%handle, members(group), c_loc(source), c_loc(destination), count, dtype, reduction, root)
    end function
    integer function weft_gather(world, source, destination, count, dtype, root, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, root
        type(weft_group), intent(in), optional :: group
        status = c_gather(world%handle, members(group), c_loc(source), c_loc(destination), count, dtype, root)
    end function
    integer function weft_scatter(world, source, destination, count, dtype, root, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, root
        type(weft_group), intent(in), optional :: group
        status = c_scatter(world%handle, members(group), c_loc(source), c_loc(destination), count, dtype, root)
    end function
    integer function weft_send(world, source, count, dtype, to, tag, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(in), target :: source
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, to, tag
        type(weft_group), intent(in), optional :: group
        status = c_send(world%handle, members(group), c_loc(source), count, dtype, to, tag)
    end function
    integer function weft_recv(world, destination, count, dtype, from, tag, group) result(status)
        type(weft_world), intent(in) :: world
        type(*), dimension(..), contiguous, intent(inout), target :: destination
        integer(int64), intent(in) :: count
        integer, intent(in) :: dtype, from, tag
        type(weft_group), intent(in), optional :: group
        status = c_recv(world%handle, members(group), c_loc(destination), count, dtype, from, tag)
    end function
    integer function weft_barrier(world, group) result(status)
        type(weft_world), intent(in) :: world
        type(weft_group), intent(in), optional :: group
        status = c_barrier(world%handle, members(group))
    end function

    ! --- graphs ---

    integer function weft_graph_create(graph) result(status)
        type(weft_graph), intent(out) :: graph
        status = c_graph_create(graph%handle)
    end function
    subroutine weft_graph_destroy(graph)
        type(weft_graph), intent(inout) :: graph
        call c_graph_destroy(graph%handle)
        graph%handle = c_null_ptr
    end subroutine
    ! The first failure of building it, and what was wrong.
    integer function weft_graph_status(graph) result(status)
        type(weft_graph), intent(in) :: graph
        status = c_graph_status(graph%handle)
    end function
    function weft_graph_message(graph) result(text)
        type(weft_graph), intent(in) :: graph
        character(len=:), allocatable :: text
        text = text_of(c_graph_message(graph%handle))
    end function

    type(weft_value) function weft_input(graph, name, dtype, shape) result(value)
        type(weft_graph), intent(in) :: graph
        character(len=*), intent(in) :: name
        integer, intent(in) :: dtype, shape(:)
        value = c_input(graph%handle, c_text(name), dtype, size(shape), int(shape, c_int64_t))
    end function
    type(weft_value) function weft_param(graph, name, dtype, shape, init, scale) result(value)
        type(weft_graph), intent(in) :: graph
        character(len=*), intent(in) :: name
        integer, intent(in) :: dtype, shape(:), init
        real(real64), intent(in), optional :: scale
        real(c_double) :: factor
        factor = 0
        if (present(scale)) factor = scale
        value = c_param(graph%handle, c_text(name), dtype, size(shape), int(shape, c_int64_t), init, factor)
    end function
    subroutine weft_cell_begin(graph, name)
        type(weft_graph), intent(in) :: graph
        character(len=*), intent(in) :: name
        call c_cell_begin(graph%handle, c_text(name))
    end subroutine
    type(weft_value) function weft_cell_end(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_cell_end(graph%handle, x)
    end function
    subroutine weft_output(graph, name, value)
        type(weft_graph), intent(in) :: graph
        character(len=*), intent(in) :: name
        type(weft_value), intent(in) :: value
        call c_output(graph%handle, c_text(name), value)
    end subroutine
    subroutine weft_loss(graph, value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: value
        call c_loss(graph%handle, value)
    end subroutine

    type(weft_value) function weft_add(graph, a, b) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: a, b
        value = c_add(graph%handle, a, b)
    end function
    type(weft_value) function weft_sub(graph, a, b) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: a, b
        value = c_sub(graph%handle, a, b)
    end function
    type(weft_value) function weft_mul(graph, a, b) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: a, b
        value = c_mul(graph%handle, a, b)
    end function
    type(weft_value) function weft_div(graph, a, b) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: a, b
        value = c_div(graph%handle, a, b)
    end function
    type(weft_value) function weft_mse(graph, a, b) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: a, b
        value = c_mse(graph%handle, a, b)
    end function
    type(weft_value) function weft_neg(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_neg(graph%handle, x)
    end function
    type(weft_value) function weft_exp(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_exp(graph%handle, x)
    end function
    type(weft_value) function weft_log(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_log(graph%handle, x)
    end function
    type(weft_value) function weft_sqrt(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_sqrt(graph%handle, x)
    end function
    type(weft_value) function weft_tanh(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_tanh(graph%handle, x)
    end function
    type(weft_value) function weft_sigmoid(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_sigmoid(graph%handle, x)
    end function
    type(weft_value) function weft_relu(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_relu(graph%handle, x)
    end function
    type(weft_value) function weft_gelu(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_gelu(graph%handle, x)
    end function
    type(weft_value) function weft_silu(graph, x) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        value = c_silu(graph%handle, x)
    end function
    type(weft_value) function weft_scale(graph, x, factor) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        real(real64), intent(in) :: factor
        value = c_scale(graph%handle, x, factor)
    end function
    type(weft_value) function weft_shift(graph, x, term) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        real(real64), intent(in) :: term
        value = c_shift(graph%handle, x, term)
    end function
    logical(c_bool) function said(flag)
        logical, intent(in), optional :: flag
        said = .false._c_bool
        if (present(flag)) said = logical(flag, c_bool)
    end function
    type(weft_value) function weft_matmul(graph, a, b, transpose_a, transpose_b) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: a, b
        logical, intent(in), optional :: transpose_a, transpose_b
        value = c_matmul(graph%handle, a, b, said(transpose_a), said(transpose_b))
    end function
    type(weft_value) function weft_linear(graph, x, weight, bias, transposed) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x, weight
        type(weft_value), intent(in), optional :: bias
        logical, intent(in), optional :: transposed
        type(weft_value) :: added
        added = WEFT_NO_VALUE
        if (present(bias)) added = bias
        value = c_linear(graph%handle, x, weight, added, said(transposed))
    end function
    type(weft_value) function weft_cross_entropy(graph, logits, targets, ignore, smoothing) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: logits, targets
        integer(int64), intent(in) :: ignore
        real(real64), intent(in) :: smoothing
        value = c_cross_entropy(graph%handle, logits, targets, ignore, smoothing)
    end function
    type(weft_value) function weft_layer_norm(graph, x, gamma, beta, eps) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x, gamma, beta
        real(real64), intent(in) :: eps
        value = c_layer_norm(graph%handle, x, gamma, beta, eps)
    end function
    type(weft_value) function weft_reshape(graph, x, shape) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        integer, intent(in) :: shape(:)
        value = c_reshape(graph%handle, x, size(shape), int(shape, c_int64_t))
    end function
    ! Axes count from 0, as in C.
    type(weft_value) function weft_concat(graph, x, axis) result(value)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x(:)
        integer, intent(in) :: axis
        value = c_concat(graph%handle, size(x), x, axis)
    end function

    ! --- plans ---

    integer function weft_plan_create(devices, plan) result(status)
        integer, intent(in) :: devices
        type(weft_plan), intent(out) :: plan
        status = c_plan_create(devices, plan%handle)
    end function
    subroutine weft_plan_destroy(plan)
        type(weft_plan), intent(inout) :: plan
        call c_plan_destroy(plan%handle)
        plan%handle = c_null_ptr
    end subroutine
    integer function weft_plan_axis(plan, name, size) result(status)
        type(weft_plan), intent(in) :: plan
        character(len=*), intent(in) :: name
        integer, intent(in) :: size
        status = c_plan_axis(plan%handle, c_text(name), size)
    end function
    integer function weft_op_split(plan, match, split) result(status)
        type(weft_plan), intent(in) :: plan
        character(len=*), intent(in) :: match, split
        status = c_op_split(plan%handle, c_text(match), c_text(split))
    end function
    integer function weft_tensor_split(plan, match, layout) result(status)
        type(weft_plan), intent(in) :: plan
        character(len=*), intent(in) :: match, layout
        status = c_tensor_split(plan%handle, c_text(match), c_text(layout))
    end function
    integer function weft_plan_optimizer(plan, level, threshold, shard) result(status)
        type(weft_plan), intent(in) :: plan
        integer, intent(in) :: level
        integer(int64), intent(in), optional :: threshold
        integer, intent(in), optional :: shard
        integer(c_int64_t) :: least
        integer(c_int) :: sharers
        least = 0
        sharers = 0
        if (present(threshold)) least = threshold
        if (present(shard)) sharers = shard
        status = c_plan_optimizer(plan%handle, level, least, sharers)
    end function
    integer function weft_plan_pipeline(plan, stages, microbatches, schedule, chunks) result(status)
        type(weft_plan), intent(in) :: plan
        integer, intent(in) :: stages, microbatches, schedule, chunks
        status = c_plan_pipeline(plan%handle, stages, microbatches, schedule, chunks)
    end function
    integer function weft_plan_stage(plan, match, stage) result(status)
        type(weft_plan), intent(in) :: plan
        character(len=*), intent(in) :: match
        integer, intent(in) :: stage
        status = c_plan_stage(plan%handle, c_text(match), stage)
    end function

    ! --- sessions ---

    type(weft_session_options) function weft_session_defaults() result(options)
        call c_defaults(options)
    end function
    ! The graph outlives the session; plan and world as in C.
    integer function weft_session_create(graph, options, session, plan, world) result(status)
        type(weft_graph), intent(in) :: graph
        type(weft_session_options), intent(in) :: options
        type(weft_session), intent(out) :: session
        type(weft_plan), intent(in), optional :: plan
        type(weft_world), intent(in), optional :: world
        type(c_ptr) :: split, processes
        split = c_null_ptr
        processes = c_null_ptr
        if (present(plan)) split = plan%handle
        if (present(world)) processes = world%handle
        status = c_session_create(graph%handle, options, split, processes, session%handle)
    end function
    subroutine weft_session_destroy(session)
        type(weft_session), intent(inout) :: session
        call c_session_destroy(session%handle)
        session%handle = c_null_ptr
    end subroutine
    integer function weft_session_add(session, graph, program) result(status)
        type(weft_session), intent(in) :: session
        type(weft_graph), intent(in) :: graph
        integer, intent(out) :: program
        status = c_session_add(session%handle, graph%handle, program)
    end function
    integer function weft_session_step(session, learning_rate, loss) result(status)
        type(weft_session), intent(in) :: session
        real(real64), intent(in) :: learning_rate
        real(real64), intent(out) :: loss
        status = c_session_step(session%handle, learning_rate, loss)
    end function
    integer function weft_session_accumulate(session, loss) result(status)
        type(weft_session), intent(in) :: session
        real(real64), intent(out) :: loss
        status = c_session_accumulate(session%handle, loss)
    end function
    integer function weft_session_update(session, learning_rate, norm) result(status)
        type(weft_session), intent(in) :: session
        real(real64), intent(in) :: learning_rate
        real(real64), intent(out), optional, target :: norm
        type(c_ptr) :: place
        place = c_null_ptr
        if (present(norm)) place = c_loc(norm)
        status = c_session_update(session%handle, learning_rate, place)
    end function
    integer function weft_session_forward(session, program, loss) result(status)
        type(weft_session), intent(in) :: session
        integer, intent(in) :: program
        real(real64), intent(out), optional, target :: loss
        type(c_ptr) :: place
        place = c_null_ptr
        if (present(loss)) place = c_loc(loss)
        status = c_session_forward(session%handle, program, place)
    end function

    integer(c_int) function program_of(program)
        integer, intent(in), optional :: program
        program_of = 0
        if (present(program)) program_of = program
    end function
    integer(c_size_t) function bytes_of(elements, bits)
        integer(int64), intent(in) :: elements
        integer, intent(in) :: bits
        bytes_of = int(elements*(bits/8), c_size_t)
    end function
    integer function feed_real32(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        real(real32), intent(in), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_feed(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function feed_real64(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        real(real64), intent(in), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_feed(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function feed_int32(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        integer(int32), intent(in), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_feed(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function read_real32(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        real(real32), intent(inout), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_read(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function read_real64(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        real(real64), intent(inout), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_read(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function read_int32(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        integer(int32), intent(inout), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_read(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function write_real32(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        real(real32), intent(in), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_write(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function write_real64(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        real(real64), intent(in), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_write(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
    integer function write_int32(session, name, array, program) result(status)
        type(weft_session), intent(in) :: session
        character(len=*), intent(in) :: name
        integer(int32), intent(in), target, contiguous :: array(..)
        integer, intent(in), optional :: program
        status = c_session_write(session%handle, program_of(program), c_text(name), c_loc(array), &
            bytes_of(size(array, kind=int64), storage_size(array)))
    end function
end module
