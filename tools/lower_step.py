"""Lowers a training step to the HLO program that XLA compiles."""


def lower(step, iterator):
    """Returns a step as serialized HLO, and all that it reads.

    Args:
      step: A `TrainingStep`.
      iterator: Yields batches.

    Returns:
      The HLO, the values of the arguments, the values of the variables, and the
      variables' handles.
    """
    import tensorflow as tf
    from tensorflow.compiler.xla.service import hlo_pb2

    program = tf.function(step._replica_step, jit_compile=True, autograph=False)
    metrics = dict.fromkeys(step._metric_names, tf.constant(0.0))
    arguments = (next(iterator), tf.constant(True), metrics)
    lowered = program.experimental_get_compiler_ir(*arguments)
    concrete = program.get_concrete_function(*arguments)
    variables = [
        tf.raw_ops.ReadVariableOp(
            resource=x, dtype=x._handle_data.shape_and_type[0].dtype
        ).numpy()
        for x in concrete.captured_inputs
    ]
    values = [x.numpy() for x in tf.nest.flatten(arguments)]
    module = hlo_pb2.HloModuleProto.FromString(lowered(stage="hlo_serialized"))
    for computation in module.computations:
        for instruction in computation.instructions:
            # StableHLO for GPUs has no copy: reshape to the same shape.
            if instruction.opcode == "copy":
                instruction.opcode = "reshape"
    lowered = module.SerializeToString()
    return lowered, values, variables, concrete.captured_inputs
