use super::*;

#[test]
fn an_image_of_a_batch_is_the_image_alone() -> Result<()> {
    let mut batch = ImageNoise::new(u64::MAX, 2); // seeds u64::MAX and 0
    let mut alone = ImageNoise::new(0, 1);
    let shape = (3, 5, 5);
    let first: Vec<f32> = batch.latents(shape)?.get(1)?.flatten_all()?.to_vec1()?;
    assert_eq!(first, alone.latents(shape)?.flatten_all()?.to_vec1::<f32>()?);
    let like = Tensor::zeros((2, 3, 5, 5), candle_core::DType::F16, &Device::Cpu)?;
    let second = batch.sample(&like)?;
    assert_eq!(second.dtype(), like.dtype());
    let expected = alone
        .latents(shape)?
        .to_dtype(like.dtype())?
        .to_dtype(candle_core::DType::F32)?
        .flatten_all()?
        .to_vec1::<f32>()?;
    assert_eq!(second.get(1)?.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1::<f32>()?, expected);
    Ok(())
}

#[test]
fn a_batch_of_another_size_is_refused() {
    let like = Tensor::zeros((3, 1, 4, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
    let error = ImageNoise::new(0, 2).sample(&like).unwrap_err();
    assert_eq!(error.to_string(), "3 images for 2 noise generators; make one generator for each image of the batch");
}

/// Also where a block of 16 values has those of two images.
#[test]
fn parts_are_the_images_of_one_draw() -> Result<()> {
    let like = Tensor::zeros((2, 3, 5, 5), candle_core::DType::F32, &Device::Cpu)?;
    let mut whole = CpuRng::new(7);
    let draws = [whole.sample(&like)?, whole.sample(&like)?];
    let path = BrownianTree::new(7, RngKind::Cpu, (150, None), 0.1, 10.0).normals(5.0, 2.0);
    for image in 0..2 {
        let options = NoiseOptions { part: NoisePart::new(image, 2), ..NoiseOptions::default() };
        let mut noise = ImageNoise::with_options([7], options);
        let one = like.narrow(0, 0, 1)?;
        let found = [noise.latents((3, 5, 5))?, noise.sample(&one)?];
        for (found, draw) in found.iter().zip(&draws) {
            assert_eq!(found.get(0)?.to_vec3::<f32>()?, draw.get(image)?.to_vec3::<f32>()?);
        }
        let step = noise.brownian_increment(&one, (0.1, 10.0), 5.0, 2.0)?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(step, path[75 * image..][..75]);
    }
    Ok(())
}
